"""Applies the rules of lines and blocks to streamed text. Does not handle stop strings.

The first visible line is sent as it arrives, except text that may be a repetition and blanks at its end. With
SINGLE_LINE the completion ends there. With MULTI_LINE each further line is sent when it is complete, because the length
limit may cut it in half; a line that ends the block is recognised earlier, at its first visible character or word. A
line that continues a block with another one ("else:") is sent with the line behind it, which may not come, either.
"""

import re

from completion_server.core.request import Mode
from completion_server.text.rules.block import CodeBlock, LinePosition, continues_block
from completion_server.text.rules.repetition import LinesBelow, RestOfLine
from completion_server.text.rules.surroundings import BLANKS, Line, Surroundings

_PIECES = re.compile(r"[\r\n]|[^\r\n]+")


class LineRules:
    """The rules for the lines of one completion."""

    def __init__(self, around: Surroundings, mode: Mode) -> None:
        """Begin. MULTI_LINE applies only if the text right of the cursor is blank or begins with a closing bracket."""
        self._around = around
        self._rest = RestOfLine(around)
        self._below = LinesBelow(around)
        is_line_closed = not around.is_rest_blank and not self._rest.is_closing_bracket
        self._block = None if mode is Mode.SINGLE_LINE or is_line_closed else CodeBlock(around)
        self._text = ""
        self._num_read = 0
        self._num_passed = 0
        self._line = ""
        self._rest_at: int | None = None
        """Index in the current line from which on it may repeat the rest of the cursor's line."""
        self._withheld_at: int | None = None
        """Index of the last lines, if each of them continues a block with one of which nothing came yet."""
        self._is_cursor_line = True
        self._is_first = True
        is_inside = self._block is None or not around.is_head_blank
        self._position = LinePosition.INSIDE if is_inside else LinePosition.UNDECIDED
        self.is_done = False
        """Whether a rule ended the completion."""

    @property
    def has_whole_line(self) -> bool:
        """Whether a line is whole, and further ones may follow."""
        return self._block is not None and not self._is_first

    def read(self, text: str) -> int:
        """Read on in a text that begins with what was read before; return how many of its characters can be sent."""
        self._text = text
        for match in _PIECES.finditer(text, self._num_read):
            if match.group() in "\r\n":
                self._end_line()
            else:
                self._extend_line(match.group())
            if self.is_done:
                break
        return self._num_passed

    def finish(self, *, is_cut: bool) -> int:
        """Return how many characters can be sent at the end; `is_cut` if a limit, of tokens or time, ended the text."""
        if is_cut and self.has_whole_line:
            self._end_before(self._line_start if self._withheld_at is None else self._withheld_at)
        else:
            self._complete_line()
        if not self.is_done and self._below.is_repeated:
            self._end(self._below.repeated_from)
        elif not self.is_done:
            self._end_with_blanks(self._num_read)
        return self._num_passed

    def _extend_line(self, fragment: str) -> None:
        """Add to the current line."""
        if self._rest_at is None:
            found = self._rest.find_start(fragment)
            if found is not None:
                self._rest_at = len(self._line) + found
        self._line += fragment
        self._num_read += len(fragment)
        self._judge(is_whole=self._rest_at is not None)
        if self._is_first and self._position is LinePosition.INSIDE:
            self._stream()

    def _end_line(self) -> None:
        """Read a line break."""
        self._complete_line()
        if self.is_done:
            return
        if self._block is None:
            self._end_with_blanks(self._num_read)
        elif self._block.is_closed and not self._line.strip(BLANKS):
            self._end(self._below.repeated_from if self._below.is_repeated else self._num_read)
        else:
            self._rest.end_line(self._line)
            self._num_read += 1
            self._line = ""
            self._rest_at = None
            self._is_cursor_line = False
            self._position = LinePosition.UNDECIDED

    def _complete_line(self) -> None:
        """Apply the rules for whole lines."""
        self._rest_at = self._rest.find_end(self._line)
        self._judge(is_whole=True)
        if self.is_done:
            return
        if self._rest_at is not None:
            self._end_with_blanks(self._line_start + self._rest_at)
        elif (line := self._whole_line()).text:
            self._add_line(line)

    def _add_line(self, line: Line) -> None:
        """Add a whole line that is inside the block and does not repeat the rest of the cursor's line."""
        if self._is_whole_line_generated():
            self._below.add(line, self._line_start)
            if self._below.is_repeated and (self._block is None or self._below.is_whole):
                self._end(self._below.repeated_from)
                return
        if self._block is None or self._is_first or not continues_block(line.text, self._around.syntax):
            self._withheld_at = None
        elif self._withheld_at is None:
            self._withheld_at = self._line_start
        self._pass(min(self._below.repeated_from, self._num_read if self._withheld_at is None else self._withheld_at))
        self._is_first = self._is_first and not self._line.strip(BLANKS)
        if self._block is not None:
            self._block.end_line(line)

    def _stream(self) -> None:
        """Let the part of an unfinished line pass that repeats nothing."""
        if not (self._is_whole_line_generated() and self._below.may_become(self._whole_line())):
            start = max(0, self._num_passed - self._line_start)
            self._pass(self._num_read - self._rest.num_possible(self._line, start))

    def _judge(self, *, is_whole: bool) -> None:
        """Set the position of the current line, if it is undecided; a line behind the block ends the completion."""
        if self._block is None or self._position is not LinePosition.UNDECIDED:
            return
        line = self._whole_line()
        if line.text:
            is_word_whole = is_whole or self._line[-1] in BLANKS
            self._position = self._block.judge(line, self._rest, is_whole=is_whole, is_word_whole=is_word_whole)
            if self._position is LinePosition.BEHIND:
                self._end_before(self._line_start)

    def _whole_line(self) -> Line:
        """Return the current line, with the document's text left of the cursor if it is the cursor's line.

        Without what may repeat the rest of the cursor's line.
        """
        line = self._line[: self._rest_at]
        return Line.of(self._around.head + line if self._is_cursor_line else line)

    def _is_whole_line_generated(self) -> bool:
        return not self._is_cursor_line or (self._around.is_head_blank and self._around.is_rest_blank)

    @property
    def _line_start(self) -> int:
        """Number of characters before the current line."""
        return self._num_read - len(self._line)

    def _pass(self, end: int) -> None:
        """Let the text before an index pass, without blanks at its end."""
        self._num_passed += len(self._text[self._num_passed : min(end, self._num_read)].rstrip(BLANKS))

    def _end(self, end: int) -> None:
        """End the completion before an index."""
        self._pass(end)
        self.is_done = True

    def _end_with_blanks(self, end: int) -> None:
        """End the completion before an index, with the blanks that the text right of the cursor needs."""
        self._end(end)
        if not self._around.has_blank_before_rest:
            self._num_passed = max(self._num_passed, end)

    def _end_before(self, start: int) -> None:
        """End the completion before a line, and before the lines that it repeats if it goes on so."""
        self._end(min(start, self._below.repeated_from) if self._below.may_become(self._whole_line()) else start)
