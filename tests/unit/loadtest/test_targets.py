"""The syntax of targets, and the pure part of an editor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.driving.worker import make_target
from loadtest.targets import NEAREST, ClientSettings, TargetError, nearest_target, parse_target
from loadtest.targets.editor import EditorCache, accepted_chars, common_chars, is_typed_along
from loadtest.traffic.typed import Text, TypedRequest
from tests.unit.loadtest.typed import request


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


def test_a_completion_server_has_a_default_port() -> None:
    assert parse_target("grpc+complete://a,b:1,[::1],[::1]:2").hosts == ("a:50051", "b:1", "[::1]:50051", "[::1]:2")


def test_a_list_of_servers_is_a_target() -> None:
    spec = nearest_target("a:1, [::1]:2 ,c:3")
    assert (spec.kind, spec.hosts) == (NEAREST, ("a:1", "[::1]:2", "c:3"))
    assert nearest_target("a,b:2").hosts == ("a:50051", "b:2")


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ("", "servers must be HOST:PORT,HOST:PORT.*, got ''"),
        ("a:1,,b:2", "got 'a:1,,b:2'"),
        ("a:1,b:2,", "got 'a:1,b:2,'"),
        ("a:1", "at least two HOST:PORT,HOST:PORT, got 1"),
        ("a:1,b:2,a:1", "a:1 is there 2 times"),
        ("a:1,b:70000", "'b:70000' is not HOST:PORT"),
    ],
)
def test_a_bad_list_of_servers_is_an_error(servers: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        nearest_target(servers)


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
        ("llama+http://a", "'a' is not HOST:PORT"),
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
    ("uri", "said"),
    [
        ("openai+http://a:1?fim={suffix}{prefix}", "fim must hold"),
        ("openai+http://a:1?fim=x", "fim must hold"),
        ("openai+http://a:1?body=[1]", "body must be a JSON object"),
    ],
)
def test_invalid_options_are_errors(uri: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        make_target(parse_target(uri), ClientSettings())


def at(before: str, end: int) -> TypedRequest:
    return request(text=Text(before, ""), end=end)


@pytest.mark.parametrize(
    ("completion", "common", "accepted"),
    [("hello", 5, 5), ("hello!", 5, 5), ("he", 2, 0), ("help", 3, 3), ("", 0, 0), ("x", 0, 0), ("hellx", 4, 4)],
)
def test_a_user_accepts_text_that_is_typed_next(completion: str, common: int, accepted: int) -> None:
    typed = at("x = hello", 4)
    assert common_chars(completion, typed) == common
    assert accepted_chars(completion, typed, 3) == accepted


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_common_chars_are_those_of_the_longest_common_beginning(before: str, truth: str, completion: str) -> None:
    expected = max(length for length in range(7) if completion[:length] == truth[:length] and length <= len(truth))
    assert common_chars(completion, at(before + truth, len(before))) == min(expected, len(completion))


@pytest.mark.parametrize(
    ("text", "is_along"),
    [("h", True), ("hello", True), ("hello and more", True), ("hx", False), ("x", False), ("", False)],
)
def test_an_answer_that_the_user_types_still_fits(text: str, is_along: bool) -> None:
    assert is_typed_along(text, at("x = hello", 4)) is is_along
    assert not is_typed_along(text, at("x = hello", 9)), "nothing is known of what comes next"


def test_a_cache_answers_a_user_who_types_its_completion() -> None:
    cache = EditorCache(4)
    cache.add(at("x = hello", 4), "hello(")
    assert cache.find(at("x = hello", 4)) == "hello("
    assert cache.find(at("x = hello", 6)) == "llo("
    assert cache.find(at("x = hello", 9)) == "("
    assert not cache.find(at("x = hello", 3)), "it has been typed since"
    assert not cache.find(at("x = hexlo", 7)), "another text"


@pytest.mark.parametrize(("end", "completion"), [(6, "he"), (6, "he \n"), (6, "hx"), (8, "he")])
def test_a_cache_has_no_answer_after_other_text_or_at_the_end(end: int, completion: str) -> None:
    cache = EditorCache(4)
    cache.add(at("x = hello", 4), completion)
    assert not cache.find(at("x = hello", end))


def test_a_cache_is_small_and_prefers_the_newest() -> None:
    cache = EditorCache(2)
    for completion in ("hello 1", "hello 2", "hello 3"):
        cache.add(at("x = hello", 4), completion)
    assert cache.find(at("x = hello", 6)) == "llo 3"
    for _ in range(2):
        cache.add(at("x = hello", 8), "nothing")
    assert not cache.find(at("x = hello", 6))
    none = EditorCache(0)
    none.add(at("x = hello", 4), "hello")
    assert not none.find(at("x = hello", 4))
