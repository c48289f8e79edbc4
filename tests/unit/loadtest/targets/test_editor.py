"""The pure part of an editor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.targets.editor import EditorCache, accepted_chars, common_chars, is_typed_along
from loadtest.traffic.trace import Text, TypedRequest
from tests.unit.loadtest.typed import request


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


def test_at_the_end_of_the_known_text_no_answer_fits() -> None:
    assert not is_typed_along("more", at("x = hello", 9))


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
