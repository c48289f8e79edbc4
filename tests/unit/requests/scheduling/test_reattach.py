import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.request import Caller, Mode, Request, Sampling, Snippet
from completion_server.requests.scheduling.reattach import Continuation, TypedPrefixFilter, typed_since, typed_through

OLDER = Request("r1", Caller("u", "s"), 1, "file:///a.py", "python", "x = f", "\n", 16, 0.0, mode=Mode.MULTI_LINE)
CHARACTERS = st.text("ab(é漢🙂\u0301\r\n ", max_size=12)


def newer(prefix: str, **changes: Any) -> Request:
    return dataclasses.replace(OLDER, id="r2", sequence=2, received_at=0.3, prefix=prefix, **changes)


def typed_between(older: Request, newer: Request) -> str | None:
    return typed_since(Continuation.of(older), Continuation.of(newer))


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
def test_the_typed_text_is_the_end_of_the_newer_prefix(prefix: str, expected: str | None) -> None:
    assert typed_between(OLDER, newer(prefix)) == expected


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
def test_requests_with_other_contexts_do_not_match(changes: dict[str, Any]) -> None:
    assert typed_between(OLDER, newer("x = foo")) == "oo"
    assert typed_between(OLDER, newer("x = foo", **changes)) is None


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_a_typed_line_break_does_not_match_a_single_line_generation(line_break: str) -> None:
    older = dataclasses.replace(OLDER, mode=Mode.SINGLE_LINE)
    for typed in (f"oo(){line_break}", f"{line_break}  g", line_break):
        assert typed_between(older, newer("x = f" + typed, mode=Mode.SINGLE_LINE)) is None
        assert typed_between(OLDER, newer("x = f" + typed)) == typed


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
def test_the_text_after_the_typed_text_is_returned(typed: str, said: list[str], left: str) -> None:
    typed_prefix = TypedPrefixFilter(typed)
    assert "".join(map(typed_prefix.feed, said)) == left
    assert not typed_prefix.is_ahead
    assert not typed_prefix.has_diverged


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
def test_other_text_diverges_for_good(typed: str, said: list[str]) -> None:
    typed_prefix = TypedPrefixFilter(typed)
    assert "".join(map(typed_prefix.feed, said)) == ""
    assert typed_prefix.has_diverged
    assert typed_prefix.feed("more of it") == ""
    assert typed_prefix.has_diverged


@given(CHARACTERS, CHARACTERS, st.lists(st.integers(0, 12), max_size=6))
def test_the_pieces_of_the_text_do_not_matter(typed: str, said: str, cuts: list[int]) -> None:
    whole = TypedPrefixFilter(typed)
    left = whole.feed(said)
    places = pairwise([0, *sorted(cuts), max([len(said), *cuts])])
    pieces = TypedPrefixFilter(typed)
    assert "".join(pieces.feed(said[begin:end]) for begin, end in places) == left
    assert pieces.has_diverged == whole.has_diverged
    assert pieces.has_diverged or pieces.is_ahead == whole.is_ahead


@given(CHARACTERS, CHARACTERS)
def test_a_filter_is_ahead_or_diverged_or_returns_text(typed: str, said: str) -> None:
    typed_prefix = TypedPrefixFilter(typed)
    left = typed_prefix.feed(said)
    if said.startswith(typed):
        assert (left, typed_prefix.is_ahead, typed_prefix.has_diverged) == (said[len(typed) :], False, False)
    elif typed.startswith(said):
        assert (left, typed_prefix.is_ahead, typed_prefix.has_diverged) == ("", True, False)
    else:
        assert (left, typed_prefix.has_diverged) == ("", True)


@dataclasses.dataclass
class Said:
    text: str
    num_tokens: int


@pytest.mark.parametrize(
    ("text", "num_tokens", "typed", "expected"),
    [
        ("", 0, "oo", "oo"),  # no text was generated yet
        ("oo", 1, "oo", "oo"),
        ("oobar", 2, "oo", "oo"),
        ("o", 1, "oo", "oo"),  # the user is ahead
        ("ob", 1, "oo", None),  # it says something else
        ("oobar", 2, "", ""),
        ("x" * 8, 8, "x" * 8, "x" * 8),  # half of 16 tokens are left
        ("x" * 9, 9, "x" * 9, None),
        ("", 0, "x" * 32, "x" * 32),  # by 4 characters a token, as many are left
        ("", 0, "x" * 36, None),
    ],
)
def test_a_request_reattaches_if_the_text_agrees_and_enough_tokens_are_left(
    text: str, num_tokens: int, typed: str, expected: str | None
) -> None:
    older, asked = Continuation.of(OLDER), Continuation.of(newer("x = f" + typed))
    assert typed_through(older, Said(text, num_tokens), asked) == expected


def test_a_seeded_request_does_not_reattach() -> None:
    seeded = dataclasses.replace(OLDER, sampling=Sampling(0.5, 1))
    assert typed_between(seeded, dataclasses.replace(seeded, id="r2")) is None
    greedy = dataclasses.replace(OLDER, sampling=Sampling(0.0, 1))
    assert typed_between(greedy, dataclasses.replace(greedy, id="r2")) == ""
