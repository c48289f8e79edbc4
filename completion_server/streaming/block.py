"""Finds the end of a block of code by indentation.

The cursor's line determines the block. `own` is the indentation of the line that opens it, `floor` the smallest
indentation inside it.

- The cursor's line has text and opens a block: it ends like an opener (`opens_block`) or the next line is indented
  deeper. The block is its body.
- The cursor's line has text and opens no block. The block is the lines indented at least as deep as that line.
- The cursor's line is blank. The block is the lines indented at least as deep as the cursor, or deeper than an opener
  right above it if the cursor is not indented yet. At column 0 no indentation could end that block, so the first
  generated line is treated as the cursor's line.

The first visible line indented less than `floor` ends the completion before it, with two exceptions, which never
include a line indented less than `own`:

- A line that begins with a closing bracket ("</", or a word such as "end" in languages that use one) is the last line
  of the block and included, unless the text below the cursor already closes or continues the block. If the line opens
  a block again ("} else {", "):"), that body follows.
- If the cursor's line is the opener, lines at its indentation that continue it ("else:", "except", "case") are
  included. If the cursor is inside the body they end it, because their opener is not part of this completion.

A line at the block's own depth also ends it, if it closes a bracket that the completion didn't open and that the first
line below closes at the same indentation.
"""

import re
from enum import Enum, auto

from completion_server.streaming.brackets import opens_block
from completion_server.streaming.surroundings import Line, Surroundings

_CLOSER = r"[)\]}]|</"
_CLOSING_WORD = r"|(?:end|fi|done|esac)\b"
_LANGUAGES_WITH_CLOSING_WORDS = frozenset({"ruby", "lua", "shellscript", "julia", "elixir", "crystal", "matlab"})
_CONTINUATION = re.compile(r"(?:elif|else|elseif|elsif|except|finally|catch|rescue|ensure|when|case)\b|default:")
_UNDECIDED = re.compile(r"\w+|<")


class LinePosition(Enum):
    """Position of a line relative to the block."""

    INSIDE = auto()
    BEHIND = auto()
    UNDECIDED = auto()


class CodeBlock:
    """The block that a completion is in. Receives the completion line by line, without blank lines."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        has_words = around.language_id in _LANGUAGES_WITH_CLOSING_WORDS
        self._closer = re.compile(_CLOSER + (_CLOSING_WORD if has_words else ""))
        self._has_closing_words = has_words
        self._floor: int | None = None
        self._own: int | None = None
        self._is_body_of_cursor_line = False
        self._anchor: Line | None = None
        self._is_closing = False
        self.is_over = False
        """Whether the last whole line was the last one of the block."""

    def judge(self, line: Line, *, is_whole: bool, has_own_open: bool) -> LinePosition:
        """Return the position of a line, or of its beginning, relative to the block.

        `has_own_open` tells whether a bracket is open that the completion opened itself.
        """
        floor = self._settle(line)
        if line.indent >= floor:
            is_closed_below = not has_own_open and self._closes(line) and self._is_closed_below(line.indent)
            return LinePosition.BEHIND if is_closed_below else LinePosition.INSIDE
        if line.indent < self._own_indent(floor):
            return LinePosition.BEHIND
        if not is_whole and self._awaits_word(line.text):
            return LinePosition.UNDECIDED
        if self._closes(line):
            is_wanted = has_own_open or not (self._goes_on_below(line.indent) or self._is_closed_below(line.indent))
            self._is_closing = is_wanted
            return LinePosition.INSIDE if is_wanted else LinePosition.BEHIND
        is_continuation = self._is_body_of_cursor_line and _CONTINUATION.match(line.text) is not None
        return LinePosition.INSIDE if is_continuation and line.indent == self._own else LinePosition.BEHIND

    def end_line(self, line: Line) -> None:
        """Take a whole line that is inside the block, including the cursor's line."""
        if self._floor is None:
            self._anchor = line
        elif self._is_closing:
            self._is_closing = False
            self.is_over = not opens_block(line.text, self._around.language_id)
            self._become_body_of(line)

    def _settle(self, line: Line) -> int:
        """Return `floor`, which the first line after the line that determines the block decides."""
        if self._floor is not None:
            return self._floor
        if self._anchor is not None:
            is_opener = line.indent > self._anchor.indent or opens_block(self._anchor.text, self._around.language_id)
            if is_opener:
                self._become_body_of(self._anchor)
            else:
                self._floor = self._anchor.indent
        else:
            opener = self._around.opener_above()
            if opener is not None and line.indent > opener.indent:
                self._floor, self._own = opener.indent + 1, opener.indent
            else:
                self._floor = Line.of(self._around.head + "|").indent
        floor = self._floor or 0
        if self._anchor is None and floor == 0:
            self._floor = None
        return floor

    def _become_body_of(self, line: Line) -> None:
        self._floor, self._own = line.indent + 1, line.indent
        self._is_body_of_cursor_line = True

    def _own_indent(self, floor: int) -> int:
        if self._own is None:
            self._own = self._around.enclosing_indent(floor)
        return self._own

    def _awaits_word(self, text: str) -> bool:
        """Return whether more text could still make this a closing or continuing line."""
        if _UNDECIDED.fullmatch(text) is None:
            return False
        return text == "<" or self._is_body_of_cursor_line or self._has_closing_words

    def _closes(self, line: Line) -> bool:
        return self._closer.match(line.text) is not None

    def _goes_on_below(self, indent: int) -> bool:
        """Return whether the block of a closer at `indent` has more lines below the cursor."""
        return bool(self._around.below) and self._around.below[0].indent > indent

    def _is_closed_below(self, indent: int) -> bool:
        """Return whether the text below the cursor begins with a closer at `indent`."""
        below = self._around.below[:1]
        return any(line.indent == indent and self._closes(line) for line in below)
