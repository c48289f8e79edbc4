"""Finds the end of a block of code by indentation.

The cursor's line determines the block. `own` is the indentation of the line that opens it, `floor` the smallest
indentation inside it.

- The cursor's line has text and opens a block: it ends like an opener (`opens_block`) or the next line is indented
  deeper. The block is its body.
- The cursor's line has text and opens no block. The block is the lines indented at least as deep as that line.
- The cursor's line is blank. The block is the lines indented at least as deep as the cursor, or deeper than an opener
  right above it if the cursor is not indented yet. At column 0 the first generated line stands for the cursor. If it is
  not indented, either, no indentation could end that block, so it is treated as the cursor's line.

A visible line indented less than `floor` ends the completion before it, with exceptions, which never include a line
indented less than `own`:

- A line that closes the block is its last line: it begins with a closing bracket, a closing tag, or a word such as
  "end" in languages that use one. In an unknown language a word closes a block whose opener ends with no bracket and no
  colon. The line is left out if the text below the cursor already closes or continues the block, see `needs_closer`.
  What follows right below and is indented deeper ("  .then(...)"), or continues the block ("else"), is included; a
  blank line is not.
- If the cursor's line is the opener, lines at its indentation that continue it ("else:", "except", "case") are
  included. If the cursor is inside the body they end it, because their opener is not part of this completion.
- After a decorator or an attribute of several lines comes what it belongs to.
- Lines deeper than `own` are included while a bracket of the completion is open, and all lines of a string of several
  lines, at any indentation.

A line at the block's own depth also ends it, if it closes a bracket that the first line below closes already.
"""

import re
from enum import Enum

from completion_server.core.languages import Syntax
from completion_server.text.rules.brackets import CLOSING, opens_block
from completion_server.text.rules.repetition import RestOfLine
from completion_server.text.rules.surroundings import Line, Surroundings

_CONTINUATION = re.compile(
    r"(?:(?:<%|\{%|\{\{)[-~]?\s*)?(?:elif|else|elseif|elsif|except|finally|catch|rescue|ensure|when|case)\b|default:"
)
_PREAMBLE = re.compile(r"@\w|#!?\[|template\b")
_UNDECIDED = re.compile(r"[\w<>/\\#@.`%-]+")
_WORD = re.compile(r"\w+")
_CLOSER = re.compile(r"[)\]}]|</[\w.:-]*|\W*\w*(?:\s+\w+)?")
_TEMPLATE_TAG = re.compile(r"(?:<%|\{%|\{\{|\{)[-~]?\s*\w*")
_CLOSING_WORD = re.compile(r"(?:end\w*|fi|done|esac|until|next|loop|wend)\b", re.IGNORECASE)
_ENDS_OF_PLAIN_OPENERS = re.compile(r"[^\s({\[:,=>]$")
_BRACKETS_AND_TAGS = frozenset(")]}</>")


class LinePosition(Enum):
    """Position of a line relative to the block; the value tells whether the line is inside."""

    INSIDE = True
    BEHIND = False
    UNDECIDED = None


class CodeBlock:
    """The block that a completion is in. Receives the completion line by line, without blank lines."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._syntax = around.syntax
        self._floor: int | None = None
        self._opener: Line | None = None
        """The line that opens the block; an empty one if no line does."""
        self._is_body_of_cursor_line = False
        self._anchor: Line | None = None
        self._is_closing = False
        self._is_declaration = False
        """Whether the current line is what a decorator or an attribute of several lines belongs to."""
        self._is_after_preamble = False
        """Whether the last line closed a decorator or an attribute."""
        self._last: Line | None = None
        """The line that closes the block, if no further line of it came yet."""

    @property
    def is_closed(self) -> bool:
        """Whether the last whole line closed the block; a blank line after it ends it."""
        return self._last is not None

    def judge(self, line: Line, rest: RestOfLine, *, is_whole: bool, is_word_whole: bool) -> LinePosition:
        """Return the position of a line, or of its beginning, relative to the block.

        `rest` tells which brackets are open that the completion opened itself.
        """
        floor = self._settle(line)
        if rest.is_in_string:
            return LinePosition.INSIDE
        if self._last is not None and line.indent == self._last.indent and not rest.has_own_open:
            return self._judge_after_last(line, is_word_whole=is_word_whole)
        if line.indent >= floor:
            return LinePosition(line.text[0] not in CLOSING or not self._is_closed_below(line, rest))
        opener = self._find_opener(floor)
        if line.indent > opener.indent and rest.has_own_open:
            return LinePosition.INSIDE
        is_decided = is_whole or not self._is_undecided(line.text, is_word_whole=is_word_whole)
        if line.indent >= opener.indent and not is_decided:
            return LinePosition.UNDECIDED
        return LinePosition(line.indent >= opener.indent and self._is_wanted(line, opener, rest))

    def _is_wanted(self, line: Line, opener: Line, rest: RestOfLine) -> bool:
        """Return whether a line that is not indented like the block's inside closes or continues the block."""
        if self._closes(line):
            goes_on_below = self._around.line_below().indent > line.indent and not rest.has_own_open
            self._is_closing = not (goes_on_below or self._is_closed_below(line, rest))
            return self._is_closing
        return self._is_body_of_cursor_line and line.indent == opener.indent and self._continues(line, opener)

    def _continues(self, line: Line, opener: Line) -> bool:
        """Return whether a line at the opener's indentation belongs to it."""
        self._is_declaration = _is_preamble(opener)
        return self._is_declaration or _CONTINUATION.match(line.text) is not None

    def _judge_after_last(self, line: Line, *, is_word_whole: bool) -> LinePosition:
        """Return the position of a line that is indented like the line before, which closed the block."""
        if not is_word_whole and _WORD.fullmatch(line.text):
            return LinePosition.UNDECIDED
        self._is_declaration = self._is_after_preamble
        return LinePosition(self._is_declaration or _CONTINUATION.match(line.text) is not None)

    def end_line(self, line: Line) -> None:
        """Take a whole line that is inside the block, including the cursor's line."""
        if self._floor is None:
            self._anchor = line
            return
        self._last = None
        if self._is_declaration:
            self._is_declaration = False
            self._become_body_of(line)
        if self._is_closing:
            self._is_closing = False
            self._is_after_preamble = self._opener is not None and _is_preamble(self._opener)
            self._last = None if opens_block(line.text, self._syntax) else line
            self._become_body_of(line)

    def _settle(self, line: Line) -> int:
        """Return `floor`, which the first line after the line that determines the block decides."""
        if self._floor is not None:
            return self._floor
        if self._anchor is not None:
            is_opener = line.indent > self._anchor.indent or opens_block(self._anchor.text, self._syntax)
            if is_opener:
                self._become_body_of(self._anchor)
            else:
                self._floor = self._anchor.indent
        else:
            opener = self._around.opener_above()
            if opener is not None and line.indent > opener.indent:
                self._floor, self._opener = opener.indent + 1, opener
            else:
                self._floor = Line.of(self._around.head + "|").indent or line.indent
        floor = self._floor or 0
        if self._anchor is None and floor == 0:
            self._floor = None
        return floor

    def _become_body_of(self, line: Line) -> None:
        self._floor, self._opener = line.indent + 1, line
        self._is_body_of_cursor_line = True

    def _find_opener(self, floor: int) -> Line:
        if self._opener is None:
            self._opener = self._around.enclosing_line(floor) or Line(0, "")
        return self._opener

    def _is_undecided(self, text: str, *, is_word_whole: bool) -> bool:
        """Return whether more text could still make this a closing or continuing line."""
        if _TEMPLATE_TAG.fullmatch(text) or (self._syntax.needs_plain_opener and _CLOSING_WORD.match(text)):
            return True
        is_word = not is_word_whole and _UNDECIDED.fullmatch(text) is not None
        return is_word and (not text[0].isalnum() or self._is_body_of_cursor_line or bool(self._syntax.closing_words))

    def _closes(self, line: Line) -> bool:
        if self._syntax.closing.match(line.text) is None:
            return False
        if line.text[0] in _BRACKETS_AND_TAGS or not self._syntax.needs_plain_opener:
            return True
        return self._opener is not None and _ENDS_OF_PLAIN_OPENERS.search(self._opener.text) is not None

    def _is_closed_below(self, line: Line, rest: RestOfLine) -> bool:
        """Return whether the text below the cursor begins with a closer like this line, which no other block needs."""
        below = self._around.line_below()
        if below.indent != line.indent or self._closer_of(line) != self._closer_of(below):
            return False
        bracket = line.text[0]
        return bracket not in CLOSING or not self._around.needs_closer(line, rest.num_open(bracket))

    def _closer_of(self, line: Line) -> str:
        """Return what a line closes a block with: a bracket, a tag or a word."""
        match = _CLOSER.match(line.text) if self._closes(line) else None
        return match.group() if match else ""


def _is_preamble(opener: Line) -> bool:
    """Return whether a line opens a decorator or an attribute, which the next line at its indentation belongs to."""
    return _PREAMBLE.match(opener.text) is not None and not opener.text.endswith("{")


def continues_block(line: str, syntax: Syntax) -> bool:
    """Return whether a line continues the block above it with another block ("else:")."""
    return _CONTINUATION.match(line) is not None and opens_block(line, syntax)
