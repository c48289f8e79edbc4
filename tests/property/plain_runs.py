"""Repeating texts in any pieces, and the definition of a run, plainly and slowly, over a whole text."""

from collections.abc import Callable
from itertools import pairwise

from hypothesis import strategies as st

MAX_RUN, MAX_UNIT = 480, 120
RULER = "-=_*#~.+/\\ "


def first_loop(text: str) -> int | None:
    """Return the length of the shortest beginning of a text that ends with a loop, None if it has no loop."""
    return next((length for length in range(1, len(text) + 1) if run_at(text[:length], length_of_loop)), None)


def length_of_loop(unit: str) -> int:
    return max(4 * len(unit), 240)


def length_of_run(unit: str) -> int:
    return max(3 * len(unit), 100 if set(unit) <= set(RULER) else 16)


def run_at(text: str, length_of: Callable[[str], int]) -> int:
    """Return the length of the unit of the run that a text ends with, 0 if it does not end with one."""
    for size in range(1, min(MAX_UNIT, len(text)) + 1):
        if text[-1] != text[-1 - size :][:1]:
            continue
        unit = text[-size:]
        run = text[-length_of(unit) :]
        if not unit.isspace() and len(run) == length_of(unit) and run[:-size] == run[size:]:
            return size
    return 0


def end_of_first_unit(text: str, size: int) -> int:
    """Return where the first unit of the run at the end of a text ends, or its line, or the word that it cuts."""
    start = len(text) - size
    while start and text[start - 1] == text[start - 1 + size]:
        start -= 1
    end = start + size
    if "\n" in text[start:end]:
        return text.index("\n", end - 1) + 1
    while not text[start : start + size].isalnum() and text[end - 1].isalnum() and text[end].isalnum():
        end += 1
    return end


def num_repeated(text: str) -> int:
    """Return how many characters at the end of a text repeat those at most 120 characters before, at most a run."""
    longest = 0
    for distance in range(1, min(MAX_UNIT, len(text)) + 1):
        num = 0
        while num < len(text) - distance and text[-1 - num] == text[-1 - num - distance]:
            num += 1
        longest = max(longest, num)
    return min(longest, MAX_RUN)


_PARTS = ["1.0", " / ", "(a + b)", " ", "a", ".", "[i]", ", ", "x = ", "{", "}", "(", ")", '"', ":", "\n", "f(x)"]


@st.composite
def repeating_texts(draw: st.DrawFn) -> str:
    """Return code with a part that stands there several times in a row, which may be a run."""
    parts = st.lists(st.sampled_from(_PARTS), max_size=6).map("".join)
    unit = draw(parts.filter(bool))
    return draw(parts) + unit * draw(st.integers(1, 80)) + unit[: draw(st.integers(0, len(unit)))] + draw(parts)


def split(text: str, cuts: list[int]) -> list[str]:
    """Return the pieces of a text between cuts, which count on from its beginning again beyond its end."""
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(bounds)]
