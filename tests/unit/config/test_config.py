"""The configuration: its sources, its bounds and its errors."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from completion_server.config import Config, load_config
from completion_server.core.addresses import is_loopback, split_address
from completion_server.core.checks import Above, bounds_of, require_bounds
from completion_server.core.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "server.toml"
    path.write_text(text)
    return path


def load(path: Path | None = None, *overrides: str, **environ: str) -> Config:
    return load_config(path, overrides, environ)


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[scheduling]\nmax_slots = 1\nmax_queued = 1\n[engine]\nmax_num_seqs = 1\n")
    config = load(
        path,
        "engine.max_num_seqs=3",
        COMPLETION_SERVER__ENGINE__MAX_NUM_SEQS="2",
        COMPLETION_SERVER__SCHEDULING__MAX_QUEUED="2",
        UNRELATED="x",
    )
    assert (config.scheduling.max_slots, config.scheduling.max_queued, config.engine.max_num_seqs) == (1, 2, 3)


def test_values_of_flags_and_environment_are_toml_or_else_text() -> None:
    config = load(None, "server.listen=127.0.0.1:0", "server.reflection=false", "engine.vllm.block_size=64")
    assert config.server.listen == "127.0.0.1:0"
    assert config.server.reflection is False
    assert config.engine.vllm == {"block_size": 64}


def test_the_configuration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        load().server.listen = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("server.lisen=x", "server.lisen: unknown key; did you mean server.listen?"),
        ("sheduling.num_slots=1", "sheduling: unknown key; did you mean scheduling?"),
        ("server.tls.zzz=1", "server.tls.zzz: unknown key; known here: certificate, client_ca, key"),
        ("scheduling.max_slots=many", "scheduling.max_slots: input should be a valid integer"),
        ("scheduling.max_slots=999", "scheduling.max_slots: must be at most engine.max_num_seqs (64), got 999"),
        ("scheduling.step_tolerance=0.5", "scheduling.step_tolerance: must be 0 or more than 1, got 0.5"),
        ("scheduling.order=whoever", "scheduling.order: input should be 'earliest_deadline', 'first_come' or"),
        ("limits.default_tokens_multi_line=129", "limits.default_tokens_multi_line: must be at most max_tokens (128)"),
        ("server.listen=localhost", "server.listen: must be HOST:PORT, got 'localhost' (or unix:PATH)"),
        ("server.region=US East", "server.region: must have lower-case letters, digits and, between them"),
        ("server.metrics_listen=unix:/run/m", "server.metrics_listen: must be HOST:PORT, got 'unix:/run/m'"),
        ("engine.model=./nowhere", "engine.model: no folder nowhere"),
        ("engine.model=nowhere", "or a hub id such as org/name"),
        ("server.tls.certificate=/nowhere", "server.tls.certificate: needs key beside it"),
        ("speculation.mode=schedule", 'speculation.schedule: must be set where mode is "schedule"'),
        (
            "speculation={mode='fixed', schedule=[[1, 4, 2]]}",
            'speculation.mode: must be "schedule" or "auto" where a schedule is set',
        ),
        ("speculation={mode='auto', schedule=[[1, 4, 2]]}", "speculation.schedule[0]: K = 2 is over the 0 that"),
        ("speculation={mode='auto', schedule=[[2, 4, 0]]}", "speculation.schedule[0]: the first row must begin at"),
        ("speculation={mode='auto', schedule=[[1, 4]]}", "speculation.schedule[0]: must be three whole numbers"),
        (
            "traces.endpoint=collector:4317",
            "traces.endpoint: must be http://HOST:PORT or https://HOST:PORT, without a password",
        ),
        ("traces.endpoint=http://me:pw@a:4317", "traces.endpoint: must be http://HOST:PORT"),
        ("server=3", "server: must be a section, got 3"),
        ("listen", "--set listen: must be section.key=value"),
    ],
)
def test_an_error_names_the_key_and_the_allowed_values(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, override)
    assert expected in str(caught.value)


def test_the_default_numbers_of_tokens_follow_their_limit() -> None:
    usual, low = load().limits, load(None, "limits.max_tokens=64").limits
    assert (usual.num_default_tokens_single_line, usual.num_default_tokens_multi_line) == (48, 128)
    assert (low.num_default_tokens_single_line, low.num_default_tokens_multi_line) == (48, 64)
    assert load(None, "limits.max_tokens=4").limits.num_default_tokens_single_line == 4
    assert load(None, "limits.max_tokens=512").limits.num_default_tokens_multi_line == 128


def test_listeners_can_be_switched_off_or_be_unix_sockets() -> None:
    server = load(None, "server.listen=unix:/run/c", "server.admin_listen=", "server.metrics_listen=").server
    assert (server.listen, server.admin_listen, server.metrics_listen) == ("unix:/run/c", "", "")


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, "server.a=1", "engine.b=1")
    assert len(str(caught.value).splitlines()) == 2


def test_a_file_that_is_not_toml_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.toml: not valid TOML.*line 1"):
        load(write(tmp_path, "server = [unclosed"))


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    config = load(write(tmp_path, '[engine]\nmodel = "model"\ndraft_model = "org/name"\n'))
    assert config.engine.model == str(tmp_path / "model")
    assert config.engine.draft_model == "org/name"


def test_a_folder_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load(write(tmp_path, '[engine]\nmodel = "model"\n'))


@pytest.mark.parametrize(
    ("overrides", "maximum"),
    [
        ((), 0),
        (("engine.draft_model=org/name",), 4),
        (("engine.draft_model=org/name", "engine.num_speculative_tokens=7"), 7),
        (("engine.vllm.speculative_config={method='ngram', num_speculative_tokens=3}",), 3),
    ],
)
def test_a_schedule_is_limited_to_the_engines_maximum(overrides: tuple[str, ...], maximum: int) -> None:
    rows = f"[[1, 4, {maximum}], [5, 64, 0]]"
    config = load(None, *overrides, "speculation.mode=schedule", f"speculation.schedule={rows}")
    assert config.speculation.schedule == ((1, 4, maximum), (5, 64, 0))
    with pytest.raises(ConfigError, match=f"is over the {maximum} that"):
        load(None, *overrides, "speculation.mode=schedule", f"speculation.schedule=[[1, 4, {maximum + 1}]]")


@pytest.mark.parametrize(
    ("section", "key", "others"),
    [
        ("redis", "password_file", 'addresses = ["127.0.0.1:1"]\ntopology = "sentinel"\nsecret_file = "file"'),
        ("redis", "sentinel_password_file", 'addresses = ["127.0.0.1:1"]\ntopology = "sentinel"\nsecret_file = "file"'),
        ("redis", "secret_file", 'addresses = ["127.0.0.1:1"]'),
        ("admission", "quotas_file", ""),
    ],
)
def test_files_are_beside_the_configuration(tmp_path: Path, section: str, key: str, others: str) -> None:
    (tmp_path / "file").write_text("")
    config = load(write(tmp_path, f'[{section}]\n{others}\n{key} = "file"\n'))
    assert getattr(getattr(config, section), key) == str(tmp_path / "file")


CHECKED_ELSEWHERE = {"speculation.schedule", "scheduling.tenant_weights", "prompt.template_fields"}
"""Containers of numbers; each entry is checked where it is read."""


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
    return str not in leaf_types(hint) and leaf_types(hint) == set(get_args(hint) or [hint])


PLAIN = [(key, section, number) for key, section, hint, number in numeric_keys() if is_plain(hint)]


def refusal(key: str, value: float) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, (f"{key}={value}",), {})
    return str(caught.value)


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


def test_vllms_own_key_is_refused_beside_the_section() -> None:
    overrides = ["traces.endpoint=http://a:4317", "engine.vllm.otlp_traces_endpoint=http://b:4317"]
    with pytest.raises(ConfigError, match=r"engine\.vllm\.otlp_traces_endpoint: must not be set beside"):
        load_config(None, overrides, {})
    assert load_config(None, overrides[1:], {}).engine.vllm


LOCAL = (
    "127.0.0.1:50051", "127.9.8.7:1", "[::1]:50051", "[::ffff:127.0.0.1]:50051", "localhost:50051",
    "unix:/run/completion.sock", "unix-abstract:completion",
)  # fmt: skip
REACHABLE = (
    "127.evil.com:50051", "127.0.0.1.evil.com:50051", "localhost.evil.com:50051", "unixbox:50051",
    "unix.evil.com:50051", "0.0.0.0:50051", "[::]:50051", "[::ffff:10.0.0.1]:50051", "10.0.0.1:50051",
    "[fe80::1%eth0]:50051", "server.example:50051", "127.1:50051", "",
)  # fmt: skip


@pytest.mark.parametrize("address", [*LOCAL, *REACHABLE])
def test_only_loopback_addresses_and_unix_sockets_are_local(address: str) -> None:
    assert is_loopback(address) == (address in LOCAL)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("server.example:7", ("server.example", 7)),
        *(
            (each, "must be HOST:PORT, got")
            for each in ("", "127.0.0.1", ":50051", "127.0.0.1:", "a:x", "a:\u0663", "a:-1")
        ),
        ("127.0.0.1:99999", "the port must be from 0 to 65535, got '127.0.0.1:99999'"),
        ("::1:50051", "needs brackets"),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int] | str) -> None:
    if isinstance(expected, tuple):
        assert split_address(address) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            split_address(address)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("engine.model=zed-industries/zeta-2",), "ngram"),
        (("engine.model=org/model", "prompt.next_edit_template=sweep"), "ngram"),
        (("engine.model=org/model",), ""),
        (("engine.model=zed-industries/zeta-2", 'engine.draft_model=""'), ""),
        (("engine.model=zed-industries/zeta-2", "engine.draft_model=org/draft"), "org/draft"),
        (("engine.model=zed-industries/zeta-2", "engine.vllm.speculative_config={}"), ""),
    ],
)
def test_a_model_of_next_edits_drafts_from_its_prompt(overrides: tuple[str, ...], expected: str) -> None:
    assert load(None, *overrides).engine.draft_model == expected


def test_an_unknown_form_of_next_edits_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"prompt\.next_edit_template 'sweeep': unknown; did you mean 'sweep'\?"):
        load(None, "engine.model=org/model", "prompt.next_edit_template=sweeep")
