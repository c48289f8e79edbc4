"""Texts for the text rules, and their divisions into pieces."""

from itertools import pairwise

from hypothesis import strategies as st

_PARTS = ["1.0", " / ", "(a + b)", " ", "a", ".", "[i]", ", ", "x = ", "{", "}", "(", ")", '"', ":", "\n", "f(x)"]


@st.composite
def repeating_texts(draw: st.DrawFn) -> str:
    """Return code with a part that stands there several times in a row, which may be a run."""
    parts = st.lists(st.sampled_from(_PARTS), max_size=6).map("".join)
    unit = draw(parts.filter(bool))
    return draw(parts) + unit * draw(st.integers(1, 20)) + unit[: draw(st.integers(0, len(unit)))] + draw(parts)


def split(text: str, cuts: list[int]) -> list[str]:
    """Return the pieces of a text between cuts, which count on from its beginning again beyond its end."""
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(bounds)]
