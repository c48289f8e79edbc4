"""Every numeric key of the configuration has a lower and an upper bound, and a value outside is refused at load."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from completion_server.config import Config, load_config
from completion_server.core.checks import Above, bounds_of, require_bounds
from completion_server.core.errors import ConfigError

CHECKED_ELSEWHERE = {"speculation.schedule"}
"""Containers of numbers; `parse_schedule` checks each row."""


def leaf_types(hint: Any) -> set[Any]:
    return set().union(*map(leaf_types, get_args(hint))) if get_args(hint) else {hint}


def numeric_keys(section: type = Config, prefix: str = "") -> Iterator[tuple[str, type, Any, type]]:
    """Yield each key with numbers in it: its full name, its section's class, its field's type without ranges, and
    int or float."""
    for name, hint in get_type_hints(section).items():
        if dataclasses.is_dataclass(hint):
            yield from numeric_keys(hint, f"{prefix}{name}.")
            continue
        numbers = leaf_types(hint) & {int, float}
        if numbers:
            yield f"{prefix}{name}", section, hint, float if float in numbers else int


def is_plain(hint: Any) -> bool:
    return leaf_types(hint) == set(get_args(hint) or [hint])


PLAIN = [(key, section, number) for key, section, hint, number in numeric_keys() if is_plain(hint)]


def refusal(key: str, value: float) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, (f"{key}={value}",), {})
    return str(caught.value)


def test_the_search_finds_keys_of_every_kind() -> None:
    found = {key: number for key, _section, number in PLAIN}
    assert found["admission.retry_after_ms"] is int
    assert found["shed.budget_ms"] is float
    assert found["engine.nice"] is int
    assert "server.reflection" not in found


def test_containers_of_numbers_are_checked_by_their_own_parsers() -> None:
    assert {key for key, _section, hint, _number in numeric_keys() if not is_plain(hint)} == CHECKED_ELSEWHERE


@pytest.mark.parametrize(("key", "section", "number"), PLAIN, ids=[key for key, *_ in PLAIN])
def test_every_number_has_bounds_that_load_enforces(key: str, section: type, number: type) -> None:
    name = key.rpartition(".")[2]
    assert name in bounds_of(section), f"{key}: declare its range, such as Annotated[int, Between(1, 100)]"
    bounds = bounds_of(section)[name]
    assert math.isfinite(bounds.low)
    assert math.isfinite(bounds.high)
    below = bounds.low if isinstance(bounds, Above) else bounds.low - 1
    limit = f"above {bounds.low}" if isinstance(bounds, Above) else f"at least {bounds.low}"
    assert f"{key}: must be {limit}, got {number(below)}" in refusal(key, below)
    assert f"{key}: must be at most {bounds.high}, got {number(bounds.high + 1)}" in refusal(key, bounds.high + 1)
    for nonsense in (math.nan, math.inf, -math.inf):
        assert refusal(key, nonsense).startswith(f"{key}: ")


def test_the_defaults_are_within_their_bounds() -> None:
    for section in dataclasses.fields(Config):
        require_bounds(getattr(Config(), section.name))


def test_all_faults_of_a_section_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ("admission.retry_after_ms=-1", "admission.max_sessions=0"), {})
    assert set(str(caught.value).splitlines()) == {
        "admission.retry_after_ms: must be at least 0, got -1",
        "admission.max_sessions: must be at least 1, got 0",
    }
