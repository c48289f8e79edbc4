"""The text around the cursor, as lines.

Line breaks are "\\n", "\\r\\n" and "\\r"; a tab reaches to the next multiple of 4 columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from completion_server.core.request import Request
from completion_server.streaming.brackets import opens_block

BLANKS = " \t\f\v\r\n"
_TAB_WIDTH = 4
_NUM_LINES_BELOW = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or the beginning of one."""

    indent: int
    """Columns before its first visible character."""
    text: str
    """Without blanks at both ends; "" for a blank line."""

    @classmethod
    def of(cls, raw: str) -> "Line":
        """Measure a line."""
        text = raw.strip(BLANKS)
        blanks = raw[: len(raw) - len(raw.lstrip(BLANKS))]
        return cls(_width(blanks), text)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the text rules need to know about the document."""

    language_id: str
    head: str
    """The cursor's line left of the cursor."""
    rest: str
    """The cursor's line right of the cursor."""
    above: str
    """Everything before the cursor's line; line breaks are "\\n"."""
    below: tuple[Line, ...]
    """The first visible lines after the cursor's line."""

    @classmethod
    def of(cls, request: Request) -> "Surroundings":
        """Read a request's prefix and suffix."""
        prefix = _with_plain_breaks(request.prefix)
        suffix = _with_plain_breaks(request.suffix)
        start_of_line = prefix.rfind("\n") + 1
        rest, _, below = suffix.partition("\n")
        return cls(request.language_id, prefix[start_of_line:], rest, prefix[:start_of_line], _first_lines(below))

    @property
    def is_head_blank(self) -> bool:
        """Whether nothing visible stands left of the cursor."""
        return not self.head.strip(BLANKS)

    @property
    def is_rest_blank(self) -> bool:
        """Whether nothing visible stands right of the cursor."""
        return not self.rest.strip(BLANKS)

    @property
    def has_blank_before_rest(self) -> bool:
        """Whether what follows the cursor begins with a blank or is one, so that trailing blanks are of no use."""
        return self.is_rest_blank or self.rest[0] in BLANKS

    def opener_above(self) -> Line | None:
        """Return the last visible line above the cursor's, if a body is expected below it."""
        line = next(self._lines_above(), None)
        return line if line is not None and opens_block(line.text, self.language_id) else None

    def enclosing_indent(self, indent: int) -> int:
        """Return the indentation of the nearest line above that is indented less than `indent`; 0 without one."""
        return next((line.indent for line in self._lines_above() if line.indent < indent), 0)

    def _lines_above(self) -> Iterator[Line]:
        """Yield the visible lines above the cursor's, the nearest first."""
        end = len(self.above) - 1
        while end > 0:
            start = self.above.rfind("\n", 0, end) + 1
            line = Line.of(self.above[start:end])
            if line.text:
                yield line
            end = start - 1


def _first_lines(text: str) -> tuple[Line, ...]:
    lines: list[Line] = []
    start = 0
    while start < len(text) and len(lines) < _NUM_LINES_BELOW:
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = Line.of(text[start:end])
        if line.text:
            lines.append(line)
        start = end + 1
    return tuple(lines)


def _width(blanks: str) -> int:
    width = 0
    for char in blanks:
        width = (width // _TAB_WIDTH + 1) * _TAB_WIDTH if char == "\t" else width + 1
    return width


def _with_plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
