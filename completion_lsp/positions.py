"""Positions of the Language Server Protocol in a text, and offsets in characters. Pure.

A position counts its line's units of UTF-8, UTF-16 or UTF-32, as client and server agreed. Lines end with "\\n",
"\\r\\n" or "\\r" alone: `str.splitlines` knows more line ends, such as a form feed, and would count other lines than
the editor.
"""

import re
from bisect import bisect_right

from lsprotocol.types import Position, PositionEncodingKind

_LINE_END = re.compile(r"\r\n|\n|\r")
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))


class Lines:
    """The lines of one text."""

    def __init__(self, text: str, encoding: PositionEncodingKind | str = PositionEncodingKind.Utf16) -> None:
        """Find the lines of `text`, whose positions count units of `encoding`."""
        self._text = text
        self._encoding = encoding
        self._ends: list[int] = []
        self._starts = [0]
        for match in _LINE_END.finditer(text):
            self._ends.append(match.start())
            self._starts.append(match.end())
        self._ends.append(len(text))

    def offset_at(self, position: Position) -> int:
        """Return a position's offset. One beyond the end of its line or of the text is that end."""
        if position.line >= len(self._starts):
            return len(self._text)
        start, end = self._starts[position.line], self._ends[position.line]
        return min(end, start + _num_characters(self._text[start:end], position.character, self._encoding))

    def position_at(self, offset: int) -> Position:
        """Return the position of an offset, which is at most the text's length."""
        line = bisect_right(self._starts, offset) - 1
        start = self._starts[line]
        before = self._text[start : min(offset, self._ends[line])]
        return Position(line, num_units(before, self._encoding))


def num_units(text: str, encoding: PositionEncodingKind | str = PositionEncodingKind.Utf16) -> int:
    """Return the length of a text in units of an encoding."""
    if text.isascii() or encoding == PositionEncodingKind.Utf32:
        return len(text)
    if encoding == PositionEncodingKind.Utf8:
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def prefix_of_units(text: str, units: int) -> str:
    """Return the beginning of a text that has so many units of UTF-16."""
    return text[: _num_characters(text, units, PositionEncodingKind.Utf16)]


def raw_length(document: str, text: str) -> int:
    """Return how many characters a text has in a document whose lines may end with "\\r\\n"."""
    return len(text) + (text.count("\n") if "\r\n" in document else 0)


def unix_lines(text: str) -> str:
    """Return a text whose lines end with "\\n"."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _num_characters(text: str, units: int, encoding: PositionEncodingKind | str) -> int:
    """Return the number of characters in the first units of a text. A part of a character counts as all of it."""
    if text.isascii() or encoding == PositionEncodingKind.Utf32:
        return min(units, len(text))
    if encoding == PositionEncodingKind.Utf8:
        return len(text.encode("utf-8", "surrogatepass")[:units].translate(None, _CONTINUATION_BYTES))
    return len(text.encode("utf-16-le", "surrogatepass")[: 2 * units].decode("utf-16-le", "surrogatepass"))
