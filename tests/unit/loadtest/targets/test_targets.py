"""The syntax of targets, and the errors for invalid ones."""

import pytest

from loadtest.targets import TargetError, parse_target
from loadtest.targets.dialects import dialect_of


def test_a_target_may_be_just_its_address() -> None:
    spec = parse_target("grpc://127.0.0.1:50051")
    assert (spec.name, spec.kind, spec.hosts) == ("grpc://127.0.0.1:50051", "grpc", ("127.0.0.1:50051",))
    assert (dict(spec.options), spec.metrics_url, spec.num_connections(500)) == ({}, "", 0)


def test_a_target_may_have_a_name_hosts_and_options() -> None:
    uri = "grpc+complete://a:1,[::1]:2?metrics=b:9&connections=64"
    spec = parse_target(f"ours={uri}")
    assert (spec.name, spec.uri, spec.kind, spec.hosts) == ("ours", uri, "grpc+complete", ("a:1", "[::1]:2"))
    assert (spec.metrics_url, dict(spec.options)) == ("http://b:9/metrics", {"connections": "64"})
    assert [spec.num_connections(sessions) for sessions in (1, 6_400, 6_401, 10_000)] == [64, 64, 65, 100]


def test_special_characters_in_an_option_are_kept() -> None:
    spec = parse_target("openai+http://a:1?fim=<P>{prefix}<S>{suffix}&model=org/m&metrics=https://b:9/own?x")
    assert spec.options == {"fim": "<P>{prefix}<S>{suffix}", "model": "org/m"}
    assert spec.metrics_url == "https://b:9/own?x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.1:50051", "is no target: expected"),
        ("grpc://", "is no target"),
        ("grcp://a:1", "unknown scheme 'grcp' .did you mean 'grpc'.*; known are grpc, grpc.complete"),
        ("ftp://a:1", "unknown scheme 'ftp'; known are"),
        ("grpc://a", "'a' is not HOST:PORT"),
        ("grpc://a:0", "'a:0' is not HOST:PORT"),
        ("grpc://a:70000", "not HOST:PORT"),
        ("grpc://a:1,", "'' is not HOST:PORT"),
        ("grpc://a:1?conections=3", "no option 'conections' .did you mean 'connections'"),
        ("grpc://a:1?model=m", "grpc has no option 'model'; known are metrics, connections"),
        ("grpc://a:1?connections=0", "connections must be a whole number of at least 1, got '0'"),
        ("grpc://a:1?connections=many", "got 'many'"),
    ],
)
def test_an_invalid_target_is_an_error(text: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        parse_target(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [("fim={suffix}{prefix}", "fim must hold"), ("fim=x", "fim must hold"), ("body=[1]", "body must be a JSON object")],
)
def test_invalid_options_are_errors(options: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        dialect_of(parse_target(f"openai+http://a:1?{options}"))
