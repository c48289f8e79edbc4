"""Notices clients that clip the text before the cursor, so that its start moves while the user types.

A client may send the last 1,500 characters, or the last 40 lines. It does not say so, and nothing in one text shows it.
Two texts in a row do: the later one begins inside the earlier one. All functions are pure.
"""

from dataclasses import dataclass

TOP_CHARACTERS = 128
"""Characters of a text's start that are remembered."""
_MIN_PIECE = 24
_PIECES_AT = (0, 256, 1024, 4096)
"""Offsets of the pieces of a text that are looked for in the earlier one: several, because an edit may be in one."""
_GROWTH = 1.25
"""A client that clips does not send so many times as much with an unmoved start."""


@dataclass(frozen=True, slots=True)
class SentText:
    """What is remembered of the text before the cursor that a client sent."""

    top: str
    """Its first characters."""
    num_characters: int
    clip_size: int
    """Characters of the smallest text that the client was seen to clip; 0 if it was not seen to."""

    @property
    def is_clipped(self) -> bool:
        """Whether the client clipped this text, as far as is known."""
        return 0 < self.clip_size <= self.num_characters

    def begins_like(self, text: str) -> bool:
        """Return whether another text begins like this one, as far as both go."""
        return text.startswith(self.top[: len(text)])

    def next(self, text: str, shown: str, *, has_moved_up: bool) -> "SentText":
        """Return what to remember of the text that follows this one.

        `shown` is a part of this text from its start, or "". `has_moved_up` says that text which both have is nearer to
        the start of the later one.
        """
        known, top = self.clip_size, text[:TOP_CHARACTERS]
        if self.begins_like(text):
            has_grown = len(text) > known * _GROWTH + TOP_CHARACTERS
            return SentText(top, len(text), 0 if has_grown else known)
        is_as_long = len(text) == self.num_characters > 2 * TOP_CHARACTERS
        if has_moved_up or is_as_long or num_clipped(text, shown) > 0:
            known = min(known or len(text), len(text))
        return SentText(top, len(text), known)


def first_sent(text: str, clip_size: int = 0) -> SentText:
    """Return what to remember of a document's first text; `clip_size` is known from the client's other documents."""
    return SentText(text[:TOP_CHARACTERS], len(text), clip_size)


def num_clipped(text: str, earlier: str) -> int:
    """Return how many characters of the start of `earlier` are missing in `text`; 0 if it does not begin inside it.

    Takes a few searches for short pieces, whatever the texts are.
    """
    for at in _PIECES_AT:
        piece = text[at : at + min(TOP_CHARACTERS, (len(text) - at) // 2)]
        if len(piece) < _MIN_PIECE:
            break
        found = earlier.find(piece)
        if found >= 0:
            return max(0, found - at)
    return 0
