"""Loops, and runs at the end, are found as by their plain definition over the whole text, in any pieces."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.text.rules.runs import RunDetector
from tests.property.plain_runs import (
    end_of_first_unit,
    first_loop,
    length_of_loop,
    length_of_run,
    num_repeated,
    repeating_texts,
    run_at,
    split,
)
from tests.support.examples import examples

FILLER = "abcdefghijklmnopqrstuvwxyz(),_"


@st.composite
def long_texts(draw: st.DrawFn) -> str:
    """Return a text of several hundred characters with a part that repeats, perhaps too seldom for a run."""
    chance = random.Random(draw(st.integers(0, 10**6)))
    size = draw(st.sampled_from((1, 2, 5, 16, 60, 119, 120, 121)))
    unit = draw(st.sampled_from((" ", "\n  ", "-", "\u3000", "ab\n", filler(chance, size))))
    length = draw(st.integers(0, 4 * len(unit) + 260))
    parts = filler(chance, draw(st.integers(0, 700))), (unit * length)[:length], filler(chance, draw(st.integers(0, 9)))
    return "".join(parts)


def filler(chance: random.Random, length: int) -> str:
    return "".join(chance.choices(FILLER, k=length))


def check(text: str, pieces: list[str]) -> None:
    """Check that a text is read as by the plain definition."""
    detector, read = RunDetector(), ""
    for piece in pieces:
        part = detector.feed(piece)
        read += part
        assert detector.text == read
        if detector.end is not None:
            break
        assert part == piece
        assert detector.num_certain == len(read) - num_repeated(read)
    found = first_loop(text)
    assert (detector.end is not None) == (found is not None)
    if found is not None:
        assert len(read) == found
        assert detector.end == end_of_first_unit(read, run_at(read, length_of_loop))
        return
    detector.finish()
    unit = run_at(text, length_of_run)
    assert detector.end == (end_of_first_unit(text, unit) if unit else None)


@settings(max_examples=examples(1))
@given(long_texts() | repeating_texts(), st.lists(st.integers(0, 2000), min_size=2, max_size=8))
def test_a_loop_and_a_run_at_the_end_are_found_as_by_its_definition(text: str, cuts: list[int]) -> None:
    check(text, split(text, cuts))
