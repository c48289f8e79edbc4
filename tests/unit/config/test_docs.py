"""docs/configuration.md names every key and its default."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from completion_server.config import Config
from tests.support.models import ROOT


def keys(section: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from keys(value)
        else:
            yield field.name, value


@pytest.mark.parametrize(("key", "default"), list(keys(Config())))
def test_a_key_is_documented_with_its_default(key: str, default: Any) -> None:
    rows = [line for line in (ROOT / "docs/configuration.md").read_text().splitlines() if line.startswith(f"| `{key}`")]
    assert rows
    match default:
        case bool():
            shown = str(default).lower()
        case str():
            shown = f'"{default}"'
        case int() | float():
            shown = str(default)
        case None:
            shown = "unset"
        case _:
            shown = "{}"
    assert any(f"| `{shown}` |" in row for row in rows)
