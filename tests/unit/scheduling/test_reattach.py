import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.request import Caller, Mode, Request, Sampling, Snippet, Trigger
from completion_server.scheduling.reattach import TypedPrefixFilter, typed_since

OLDER = Request("r1", Caller("u", "s"), 1, "file:///a.py", "python", "x = f", "\n", 16, 0.0, mode=Mode.MULTI_LINE)
CHARACTERS = st.text("ab(é漢🙂\u0301\r\n ", max_size=12)


def newer(prefix: str, **changes: Any) -> Request:
    return dataclasses.replace(OLDER, id="r2", sequence=2, received_at=0.3, prefix=prefix, **changes)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("x = f", ""),
        ("x = foo", "oo"),
        ("x = fé漢🙂", "é漢🙂"),
        ("x = f(\r\n\tg", "(\r\n\tg"),
        ("x = ", None),
        ("x = g", None),
        ("y = foo", None),
        ("\nx = foo", None),
    ],
)
def test_what_was_typed_is_what_the_new_text_has_more(prefix: str, expected: str | None) -> None:
    assert typed_since(OLDER, newer(prefix)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"suffix": ")\n"},
        {"suffix": ""},
        {"mode": Mode.SINGLE_LINE},
        {"max_tokens": 17},
        {"sampling": Sampling(0.5)},
        {"sampling": Sampling(seed=1)},
        {"stop": (";",)},
        {"snippets": (Snippet("b.py", "def f(): ..."),)},
        {"document_uri": "file:///b.py"},
        {"language_id": "ruby"},
    ],
)
def test_a_request_for_something_else_has_nothing_in_common(changes: dict[str, Any]) -> None:
    assert typed_since(OLDER, newer("x = foo")) == "oo"
    assert typed_since(OLDER, newer("x = foo", **changes)) is None


def test_what_made_the_editor_ask_and_when_does_not_matter() -> None:
    asked = newer("x = foo", trigger=Trigger.EXPLICIT, caller=Caller("u", "another"))
    assert typed_since(OLDER, asked) == "oo"


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_a_line_that_was_ended_is_beyond_what_a_single_line_generation_says(line_break: str) -> None:
    older = dataclasses.replace(OLDER, mode=Mode.SINGLE_LINE)
    for typed in (f"oo(){line_break}", f"{line_break}  g", line_break):
        assert typed_since(older, newer("x = f" + typed, mode=Mode.SINGLE_LINE)) is None
        assert typed_since(OLDER, newer("x = f" + typed)) == typed


@pytest.mark.parametrize(
    ("typed", "said", "left"),
    [
        ("", ["ab", "c"], "abc"),
        ("ab", ["abc"], "c"),
        ("ab", ["a", "b", "c"], "c"),
        ("ab", ["a", "", "bc", "d"], "cd"),
        ("é漢", ["é", "漢🙂"], "🙂"),
        ("\r\n", ["\r", "\nx"], "x"),
    ],
)
def test_what_goes_beyond_what_was_typed_is_left(typed: str, said: list[str], left: str) -> None:
    ahead = TypedPrefixFilter(typed)
    assert "".join(map(ahead.feed, said)) == left
    assert not ahead.is_ahead
    assert not ahead.has_diverged


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("ab", ["b"]),
        ("ab", ["a", "c"]),
        ("ab", ["ac"]),
        ("abc", ["abd"]),
        ("\r\n", ["\n"]),
        ("e\u0301", ["é"]),  # the same to the eye
        ("é", ["e\u0301"]),
    ],
)
def test_saying_something_else_is_parting_for_good(typed: str, said: list[str]) -> None:
    ahead = TypedPrefixFilter(typed)
    assert "".join(map(ahead.feed, said)) == ""
    assert ahead.has_diverged
    assert ahead.feed("more of it") == ""
    assert ahead.has_diverged


def test_who_typed_more_than_was_said_is_ahead() -> None:
    ahead = TypedPrefixFilter("abc")
    assert ahead.feed("ab") == ""
    assert ahead.is_ahead
    assert not ahead.has_diverged


@given(CHARACTERS, CHARACTERS, st.lists(st.integers(0, 12), max_size=6))
def test_pieces_make_no_difference(typed: str, said: str, cuts: list[int]) -> None:
    whole = TypedPrefixFilter(typed)
    left = whole.feed(said)
    places = pairwise([0, *sorted(cuts), max([len(said), *cuts])])
    pieces = TypedPrefixFilter(typed)
    assert "".join(pieces.feed(said[begin:end]) for begin, end in places) == left
    assert pieces.has_diverged == whole.has_diverged
    assert pieces.has_diverged or pieces.is_ahead == whole.is_ahead


@given(CHARACTERS, CHARACTERS)
def test_each_generation_is_in_one_of_three_relations_to_what_was_typed(typed: str, said: str) -> None:
    ahead = TypedPrefixFilter(typed)
    left = ahead.feed(said)
    if said.startswith(typed):
        assert (left, ahead.is_ahead, ahead.has_diverged) == (said[len(typed) :], False, False)
    elif typed.startswith(said):
        assert (left, ahead.is_ahead, ahead.has_diverged) == ("", True, False)
    else:
        assert (left, ahead.has_diverged) == ("", True)
