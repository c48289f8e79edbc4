"""The text around the cursor, as lines.

Line breaks are "\\n", "\\r\\n" and "\\r"; a tab reaches to the next multiple of 4 columns.

The amount of text read does not depend on the size of the document: 16,384 characters left of the cursor and 8,192
right of it. Of the cursor's line, 2,048 characters left of the cursor, including the indentation, and 512 right of it
are read; of the lines above, the nearest 256 visible ones. Text further away is ignored.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile

from completion_server.core.immutable import immutable
from completion_server.core.languages import Syntax, language_of
from completion_server.core.request import Request
from completion_server.text.rules.brackets import CLOSING, OPENING, opens_block

BLANKS = " \t\f\v\r\n"
MAX_HEAD = 2048
"""Characters read of the cursor's line left of the cursor."""
MAX_REST = 512
"""Characters read of the cursor's line right of the cursor."""
_MAX_LEFT = 16_384
_MAX_RIGHT = 8192
_MAX_HEAD_INDENT = 256
_TAB_WIDTH = 4
_NUM_LINES_ABOVE = 256
_VISIBLE_LINE = re.compile(r"^[ \t\f\v]*[^ \t\f\v\n].*", re.MULTILINE)
_STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_MAX_SHEBANG = 256


@immutable
class Line:
    """A line, or the beginning of a line."""

    indent: int
    """Columns before its first visible character."""
    text: str
    """The text without blanks at both ends; "" for a blank line."""

    @classmethod
    def of(cls, raw: str) -> "Line":
        """Return the line of a text without a line break."""
        visible = raw.lstrip(BLANKS)
        num_blanks = len(raw) - len(visible)
        return cls(len(raw[:num_blanks].expandtabs(_TAB_WIDTH)) if num_blanks else 0, visible.rstrip(BLANKS))


@immutable
class Surroundings:
    """The part of the document that the text rules use."""

    syntax: Syntax
    head: str
    """The cursor's line left of the cursor; if it is longer than `MAX_HEAD`, its indentation and its end."""
    rest: str
    """The cursor's line right of the cursor, or its beginning."""
    above: str
    """Whole lines before the cursor's; line breaks are "\\n"."""
    is_above_cut: bool
    """Whether the document has more lines before `above`."""
    below: str
    """The lines after the cursor's; line breaks are "\\n"."""
    is_below_cut: bool
    """Whether the document goes on after `below`."""

    @classmethod
    def of(cls, request: Request) -> "Surroundings":
        """Read a request's prefix and suffix."""
        left = _with_plain_breaks(request.prefix[-_MAX_LEFT:])
        right = _with_plain_breaks(request.suffix[:_MAX_RIGHT])
        start_of_line = left.rfind("\n") + 1
        above = left[:start_of_line]
        if len(request.prefix) > _MAX_LEFT:
            _, _, above = above.partition("\n")
        rest, _, below = right.partition("\n")
        language = language_of(request.language_id, request.document_uri, request.prefix[:_MAX_SHEBANG])
        return cls(
            language.syntax,
            _head(left[start_of_line:]),
            rest[:MAX_REST],
            above,
            len(request.prefix) > _MAX_LEFT,
            below,
            len(request.suffix) > _MAX_RIGHT,
        )

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
        """Whether the text right of the cursor is blank or begins with a blank, which makes trailing blanks useless."""
        return self.rest[:1] in BLANKS

    def opener_above(self) -> Line | None:
        """Return the last visible line above the cursor's line if it opens a block, else None."""
        line = next(self._lines_above(), None)
        return line if line is not None and opens_block(line.text, self.syntax) else None

    def enclosing_line(self, indent: int) -> Line | None:
        """Return the nearest line above that is indented less than `indent`; None without one."""
        return next((line for line in self._lines_above() if line.indent < indent), None)

    def line_below(self) -> Line:
        """Return the first visible line after the cursor's; without one an empty line that is left of all others."""
        return next(self.lines_below(), Line(-1, ""))

    def lines_below(self) -> Iterator[Line]:
        """Yield the visible lines after the cursor's line."""
        return (Line.of(match.group()) for match in _VISIBLE_LINE.finditer(self.below))

    def needs_closer(self, line: Line, num_opened: int) -> bool:
        """Return whether the bracket that begins a line closes a block that the text below does not close.

        Brackets are counted in the lines around the cursor that are indented at least as deep as the line. The
        completion and the cursor's line opened `num_opened` more.
        """
        if self.is_below_cut:
            return False
        above = list(takewhile(lambda each: each.indent >= line.indent, self._lines_above()))
        below = takewhile(lambda each: each.indent >= line.indent, self.lines_below())
        closing = line.text[0]
        num_above = _balance(_after_head(reversed(above)) if closing != ")" else above, closing)
        return num_opened + num_above + _balance(below, closing) > 0

    def has_open_above(self, closing: str) -> bool:
        """Return whether the lines above open as many brackets as these closing characters close."""
        if ">" in closing:
            return False
        return self.is_above_cut or all(
            closing.count(each) <= self.above.count(OPENING[CLOSING.index(each)]) - self.above.count(each)
            for each in set(closing)
        )

    def _lines_above(self) -> Iterator[Line]:
        """Yield the visible lines above the cursor's line, the nearest first."""
        text = self.above.rstrip(BLANKS)
        for _ in range(_NUM_LINES_ABOVE):
            if not text:
                return
            start = text.rfind("\n") + 1
            yield Line.of(text[start:])
            text = text[:start].rstrip(BLANKS)


def first_line(text: str) -> str:
    """Return the text before the first line break."""
    return text.partition("\n")[0].partition("\r")[0]


def begins_line(prefix: str) -> bool:
    """Return whether only blanks stand left of the cursor on its line; also if there are too many to tell."""
    return prefix[-_MAX_HEAD_INDENT:].rstrip(" \t\f\v")[-1:] in "\r\n"


def _balance(lines: Iterable[Line], closing: str) -> int:
    """Return how many more brackets of a kind lines open than they close, without those in strings."""
    opening = OPENING[CLOSING.index(closing)]
    texts = (_STRING.sub("", line.text) for line in lines)
    return sum(text.count(opening) - text.count(closing) for text in texts)


def _after_head(lines: Iterable[Line]) -> list[Line]:
    """Return the lines after the last one that closes a parenthesis of an earlier line, such as a function's head."""
    found: list[Line] = []
    num_open = 0
    for line in lines:
        found.append(line)
        num_open += line.text.count("(") - line.text.count(")")
        if num_open < 0:
            found.clear()
            num_open = 0
    return found


def _head(line: str) -> str:
    """Return the cursor's line left of the cursor, shortened to about `MAX_HEAD` characters."""
    if len(line) <= MAX_HEAD:
        return line
    start = line[:_MAX_HEAD_INDENT]
    num_blanks = len(start) - len(start.lstrip(BLANKS))
    return start[:num_blanks] + line[num_blanks - MAX_HEAD :].lstrip(BLANKS)


def _with_plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
