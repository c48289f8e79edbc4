"""The configuration: its sources, its bounds and its errors."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from completion_server.app.checks import make_authenticator
from completion_server.config import Config, load_config
from completion_server.core.addresses import is_loopback, split_address
from completion_server.core.checks import Above, bounds_of, require_bounds
from completion_server.core.errors import ConfigError
from completion_server.state.settings import RedisSettings

ISSUER = ("auth.issuer=https://issuer.example", "auth.audience=completion")
CN = "auth.certificate_user=cn"
REDIS = 'redis.addresses=["127.0.0.1:6379"]'
NEXT_EDITS = "engine.model=zed-industries/zeta-2"


def load(path: Path | None = None, *overrides: str, **environ: str) -> Config:
    return load_config(path, overrides, environ)


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[scheduling]\nmax_slots = 1\nmax_queued = 1\n[engine]\nmax_num_seqs = 1\n")
    environ = {"COMPLETION_SERVER__ENGINE__MAX_NUM_SEQS": "2", "COMPLETION_SERVER__SCHEDULING__MAX_QUEUED": "2"}
    config = load(path, "engine.max_num_seqs=3", UNRELATED="x", **environ)
    assert (config.scheduling.max_slots, config.scheduling.max_queued, config.engine.max_num_seqs) == (1, 2, 3)
    with pytest.raises(FrozenInstanceError):
        config.server.listen = "x"  # type: ignore[misc]


def test_values_of_flags_and_environment_are_toml_or_else_text() -> None:
    config = load(None, "server.listen=unix:/run/c", "server.admin_listen=", "server.reflection=false")
    assert (config.server.listen, config.server.admin_listen) == ("unix:/run/c", "")
    assert config.server.reflection is False
    assert load(None, "engine.vllm.block_size=64").engine.vllm == {"block_size": 64}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["server.lisen=x"], "server.lisen: unknown key; did you mean server.listen?"),
        (["sheduling.num_slots=1"], "sheduling: unknown key; did you mean scheduling?"),
        (["server.stall_timeout_s=1"], "server.stall_timeout_s: unknown key"),
        (["server.tls.zzz=1"], "server.tls.zzz: unknown key; known here: certificate, client_ca, key"),
        (["scheduling.max_slots=many"], "scheduling.max_slots: input should be a valid integer"),
        (["scheduling.max_slots=999"], "scheduling.max_slots: must be at most engine.max_num_seqs (64), got 999"),
        (["scheduling.step_tolerance=0.5"], "scheduling.step_tolerance: must be 0 or more than 1, got 0.5"),
        (["scheduling.order=whoever"], "scheduling.order: input should be 'earliest_deadline', 'first_come' or"),
        (["server.listen=localhost"], "server.listen: must be HOST:PORT, got 'localhost' (or unix:PATH)"),
        (["server.region=US East"], "server.region: must have lower-case letters, digits and, between them"),
        (["server.metrics_listen=unix:/run/m"], "server.metrics_listen: must be HOST:PORT, got 'unix:/run/m'"),
        (["engine.model=./nowhere"], "engine.model: no folder nowhere"),
        (["engine.model=nowhere"], "or a hub id such as org/name"),
        ([f"engine.model={Path(__file__).parent}"], "holds no config.json"),
        (["engine.model=a/b", "prompt.next_edit_template=sweeep"], "'sweeep': unknown; did you mean 'sweep'?"),
        (["server.tls.certificate=/nowhere"], "server.tls.certificate: needs key beside it"),
        (["speculation.mode=schedule"], 'speculation.schedule: must be set where mode is "schedule"'),
        (["speculation={mode='fixed', schedule=[[1, 4, 2]]}"], 'speculation.mode: must be "schedule" or "auto" where'),
        (["speculation.schedule=[[1, 4, 2]]"], "speculation.schedule[0]: K = 2 is over the 0 that"),
        (["speculation.schedule=[[2, 4, 0]]"], "speculation.schedule[0]: the first row must begin at"),
        (["speculation.schedule=[[1, 4]]"], "speculation.schedule[0]: must be three whole numbers"),
        (["traces.endpoint=collector:4317"], "traces.endpoint: must be http://HOST:PORT or https://HOST:PORT, without"),
        (["traces.endpoint=http://me:pw@a:4317"], "traces.endpoint: must be http://HOST:PORT"),
        (
            ["traces.endpoint=http://a:4317", "engine.vllm.otlp_traces_endpoint=http://b:4317"],
            "engine.vllm.otlp_traces_endpoint: must not be set beside",
        ),
        (["server=3"], "server: must be a section, got 3"),
        (["listen"], "--set listen: must be section.key=value"),
        (["auth.audience=x"], "auth.audience: needs issuer beside it, got 'x'"),
        (["auth.issuer=https://x"], "auth.audience: must be set if issuer is"),
        (["auth.issuer=http://x.example", "auth.audience=x"], "auth.issuer: must be an https URL, or an http URL on"),
        ([*ISSUER, "auth.jwks_url=http://issuer.example/keys"], "auth.jwks_url: must be an https URL"),
        ([*ISSUER, "auth.jwks_url=https://x", f"auth.jwks_file={__file__}"], "auth.jwks_file: must not be set beside"),
        ([*ISSUER, "auth.jwks_file=/no/file"], "auth.jwks_file: no file /no/file"),
        (["auth.user_claim=''"], 'auth.user_claim: must name a claim, got ""'),
        (["auth.default_scopes=['root']"], "auth.default_scopes.0: "),
        (["auth.default_scopes=[]"], "auth.default_scopes: must name at least one scope"),
        ([CN], "auth.certificate_user: needs server.tls.client_ca"),
        (["auth.certificate_user=dn"], "auth.certificate_user: input should be 'off', 'san_uri', "),
        (["auth.certificate_admins=['ops']"], "auth.certificate_admins: needs certificate_user beside it"),
        ([CN, "auth.certificate_pattern=("], "auth.certificate_pattern: not a regular expression"),
        ([CN, "auth.certificate_pattern=(?P<name>.*)"], "must have a group (?P<user>...)"),
        ([REDIS, "redis.topology=cluster"], 'redis.secret_file: must name a file, because topology is "cluster"'),
        (
            ['redis.addresses=["10.0.0.7:6379"]'],
            "redis.secret_file: must name a file, because Redis is not on",
        ),
        ([REDIS, "redis.sentinel_username=a"], 'redis.topology: must be "sentinel" if a user or password of Sentinels'),
    ],
)
def test_an_error_names_the_key_and_the_allowed_values(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, *overrides)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "overrides", [("server.a=1", "engine.b=1"), ("limits.max_tokens=0", "limits.max_deadline_s=0")]
)
def test_all_errors_are_reported_at_once(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, *overrides)
    assert len(str(caught.value).splitlines()) == 2


def test_a_file_that_is_not_toml_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("server = [unclosed")
    with pytest.raises(ConfigError, match=r"server\.toml: not valid TOML.*line 1"):
        load(path)


def test_the_default_numbers_of_tokens_follow_their_limit() -> None:
    limits = [load(None, f"limits.max_tokens={each}").limits for each in (128, 64, 4, 512)]
    assert [each.num_default_tokens_single_line for each in limits] == [48, 48, 4, 48]
    assert [each.num_default_tokens_multi_line for each in limits] == [128, 64, 4, 128]


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "file").write_text("")
    path = tmp_path / "server.toml"
    path.write_text("""
        engine = { model = "model", draft_model = "org/name" }
        redis.addresses = ["127.0.0.1:1"]
        redis.topology = "sentinel"
        redis.secret_file = "file"
        redis.password_file = "file"
        redis.sentinel_password_file = "file"
        admission = { quotas_file = "file" }
        auth = { keys_file = "yet to come" }
        records = { usage_file = "usage" }
    """)
    config, redis = load(path), load(path).redis
    assert (config.engine.model, config.engine.draft_model) == (str(tmp_path / "model"), "org/name")
    files = (redis.secret_file, redis.password_file, redis.sentinel_password_file, config.admission.quotas_file)
    assert set(files) == {str(tmp_path / "file")}
    assert config.auth.keys_file == str(tmp_path / "yet to come")
    assert config.records.usage_file == str(tmp_path / "usage")


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
    ("overrides", "expected"),
    [
        ((NEXT_EDITS,), "ngram"),
        (("engine.model=org/model", "prompt.next_edit_template=sweep"), "ngram"),
        (("engine.model=org/model",), ""),
        ((NEXT_EDITS, 'engine.draft_model=""'), ""),
        ((NEXT_EDITS, "engine.draft_model=org/draft"), "org/draft"),
        ((NEXT_EDITS, "engine.vllm.speculative_config={}"), ""),
    ],
)
def test_a_model_of_next_edits_drafts_from_its_prompt(overrides: tuple[str, ...], expected: str) -> None:
    assert load(None, *overrides).engine.draft_model == expected


def test_authentication_is_off_unless_a_kind_of_credential_is_configured(tmp_path: Path) -> None:
    on = load(None, f"auth.keys_file={tmp_path}/keys.json")
    assert (make_authenticator(load()), make_authenticator(on) is None) == (None, False)
    # An issuer whose keys are in a file, or at a URL, may have any name.
    named = ("auth.issuer=acme", "auth.audience=x", "auth.jwks_url=http://localhost:1/keys")
    assert [load(None, *each).auth.is_on for each in ((), ISSUER, named)] == [False, True, True]


CHECKED_ELSEWHERE = {"speculation.schedule", "prompt.template_fields"}
"""Containers of numbers; each entry is checked where it is read."""


def leaf_types(hint: Any) -> set[Any]:
    return set().union(*map(leaf_types, get_args(hint))) if get_args(hint) else {hint}


def numeric_keys(section: type = Config, prefix: str = "") -> Iterator[tuple[str, type, Any, type]]:
    """Yield each key with numbers in it: its full name, its section's class, its field's type without ranges, and
    int or float."""
    hints = get_type_hints(section)
    for name in (field.name for field in dataclasses.fields(section)):
        if dataclasses.is_dataclass(hints[name]):
            yield from numeric_keys(hints[name], f"{prefix}{name}.")
        elif numbers := leaf_types(hints[name]) & {int, float}:
            yield f"{prefix}{name}", section, hints[name], float if float in numbers else int


def is_plain(hint: Any) -> bool:
    return str not in leaf_types(hint) and leaf_types(hint) == set(get_args(hint) or [hint])


PLAIN = [(key, section, number) for key, section, hint, number in numeric_keys() if is_plain(hint)]


def test_every_number_of_a_container_is_checked_by_its_own_parser_and_every_default_is_allowed() -> None:
    assert {key for key, _section, hint, _number in numeric_keys() if not is_plain(hint)} == CHECKED_ELSEWHERE
    for section in dataclasses.fields(Config):
        require_bounds(getattr(Config(), section.name))


@pytest.mark.parametrize(("key", "section", "number"), PLAIN, ids=[key for key, *_ in PLAIN])
def test_every_number_has_bounds_that_load_enforces(key: str, section: type, number: type) -> None:
    def refusal(value: float) -> str:
        with pytest.raises(ConfigError) as caught:
            load(None, f"{key}={value}")
        return str(caught.value)

    bounds = bounds_of(section)[key.rpartition(".")[2]]
    assert math.isfinite(bounds.low)
    assert math.isfinite(bounds.high)
    below = bounds.low if isinstance(bounds, Above) else bounds.low - 1
    limit = f"above {bounds.low}" if isinstance(bounds, Above) else f"at least {bounds.low}"
    assert f"{key}: must be {limit}, got {number(below)}" in refusal(below)
    assert f"{key}: must be at most {bounds.high}, got {number(bounds.high + 1)}" in refusal(bounds.high + 1)
    for nonsense in (math.nan, math.inf, -math.inf):
        assert refusal(nonsense).startswith(f"{key}: ")


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
    if address in LOCAL:
        assert RedisSettings((address,)).is_local


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("server.example:7", ("server.example", 7)),
        *(
            (each, "must be HOST:PORT, got")
            for each in ("", "127.0.0.1", ":1", "127.0.0.1:", "a:x", "a:\u0663", "a:-1")
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
