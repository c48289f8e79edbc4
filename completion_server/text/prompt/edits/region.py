"""The lines around a cursor that the next edit may change, and the text around them. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from completion_server.core.request import Request

NEAR_CHARACTERS = 32_768
"""Characters read left and right of the cursor; text further away is ignored."""
_BYTES_A_TOKEN = 2.5
"""Bytes of the region for each token that may be generated. Code has more, which leaves room for longer lines; of other
scripts than Latin, where a character is about a token, bytes count more than characters."""
_BREAK = re.compile(r"(\r\n|\r|\n)")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the document."""

    text: str
    end: str
    """Its line break; "" for the last line."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Numbers of lines above and below the cursor's."""

    above: int
    below: int


@dataclass(frozen=True, slots=True)
class Region:
    """Lines that may change, among all lines near the cursor."""

    near: Sequence[Line]
    first: int
    """Index of the region's first line in `near`."""
    end: int
    cursor: int
    """Index of the cursor's line in `near`."""
    column: int
    """Characters of the cursor's line before the cursor."""

    @property
    def lines(self) -> Sequence[Line]:
        """The lines that may change; at least the cursor's."""
        return self.near[self.first : self.end]

    @property
    def text(self) -> str:
        """The lines with "\\n" between them."""
        return "\n".join(line.text for line in self.lines)

    @property
    def cursor_offset(self) -> int:
        """Offset of the cursor in `text`."""
        return sum(len(line.text) + 1 for line in self.near[self.first : self.cursor]) + self.column

    def above(self, num_lines: int) -> str:
        """Return up to `num_lines` before the region, each with "\\n"."""
        return "".join(f"{line.text}\n" for line in self.near[max(0, self.first - num_lines) : self.first])

    def below(self, num_lines: int) -> str:
        """Return up to `num_lines` behind the region, each with "\\n" if it has a break."""
        shown = self.near[self.end : self.end + num_lines]
        return "".join(f"{line.text}\n" if line.end else line.text for line in shown)


def split_lines(text: str) -> list[Line]:
    """Return the lines of a text. The last one has no break, and is empty behind one."""
    parts = _BREAK.split(text)
    return [Line(line, end) for line, end in zip(parts[::2], [*parts[1::2], ""], strict=True)]


def find_region(request: Request, reach: Reach, words: Sequence[str], num_tokens: int) -> Region | None:
    """Return the lines around the cursor that may change; None if not even the cursor's line can be shown.

    They are at most those that the request allows, or `reach`, and so few that the model can repeat them in
    `num_tokens`. Lines with one of `words`, which mean something in a prompt or an answer, are left out.
    """
    left, right = split_lines(_end_of(request.prefix)), split_lines(request.suffix[:NEAR_CHARACTERS])
    if len(request.suffix) > NEAR_CHARACTERS:
        del right[-1]
    own, column = len(left) - 1, len(left[-1].text)
    if not right or (own == 0 and len(request.prefix) > NEAR_CHARACTERS):
        return None  # the cursor's line alone is longer than what is read
    near = [*left[:-1], Line(left[-1].text + right[0].text, right[0].end), *right[1:]]
    room = int(num_tokens * _BYTES_A_TOKEN)
    if not _is_usable(near[own], room, words):
        return None
    first, end = _grow(near, own, _asked_reach(request, reach), room, words)
    return Region(near, first, end, own, column)


def _asked_reach(request: Request, reach: Reach) -> Reach:
    asked = request.next_edit
    if asked is None:
        return reach
    above = reach.above if asked.lines_before is None else asked.lines_before
    return Reach(above, reach.below if asked.lines_after is None else asked.lines_after)


def _grow(near: Sequence[Line], own: int, reach: Reach, room: int, words: Sequence[str]) -> tuple[int, int]:
    """Return the first line and the end of a region, which grows from the cursor's line to both sides by turns."""
    first, end = own, own + 1
    lowest, highest = max(0, own - reach.above), min(len(near), end + reach.below)
    if not near[-1].text:
        highest = max(end, min(highest, len(near) - 1))  # there is no line behind the last line break
    room -= _size(near[own])
    while first > lowest or end < highest:
        if end < highest and _is_usable(near[end], room, words):
            room -= _size(near[end])
            end += 1
        else:
            highest = end
        if first > lowest and _is_usable(near[first - 1], room, words):
            room -= _size(near[first - 1])
            first -= 1
        else:
            lowest = first
    return first, end


def _is_usable(line: Line, room: int, words: Sequence[str]) -> bool:
    return _size(line) <= room and not any(word in line.text for word in words)


def _size(line: Line) -> int:
    return len(line.text.encode("utf-8", "surrogatepass")) + 1


def _end_of(prefix: str) -> str:
    """Return the end of the text before the cursor, from the start of a line on if there is one."""
    near = prefix[-NEAR_CHARACTERS:]
    cut = None if len(prefix) == len(near) else _BREAK.search(near)
    return near[cut.end() :] if cut else near
