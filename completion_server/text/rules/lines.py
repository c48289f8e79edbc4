"""Applies the rules of lines and blocks to streamed text. Does not handle stop strings.

The first visible line is sent as it arrives, except text that may be a repetition and blanks at its end. With
SINGLE_LINE the completion ends there. With MULTI_LINE each further line is sent when it is complete, because the length
limit may cut it in half; a line that ends the block is recognised earlier, at its first visible character or word.
"""

import re
import sys

from completion_server.core.request import Mode
from completion_server.text.rules.block import CodeBlock, LinePosition
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
        self._line = ""
        self._held = ""
        self._num_taken = 0
        """Characters before the withheld ones."""
        self._rest_at: int | None = None
        """Index in the current line from which on it may repeat the rest of the cursor's line."""
        self._is_cursor_line = True
        self._is_first = True
        is_inside = self._block is None or not around.is_head_blank
        self._position = LinePosition.INSIDE if is_inside else LinePosition.UNDECIDED
        self.is_done = False
        """Whether a rule ended the completion."""

    def feed(self, text: str) -> str:
        """Take new text and return the text that can be sent now."""
        sent: list[str] = []
        for match in _PIECES.finditer(text):
            piece = match.group()
            sent.append(self._end_line(piece) if piece in "\r\n" else self._extend_line(piece))
            if self.is_done:
                break
        return "".join(sent)

    def finish(self, *, is_cut: bool) -> str:
        """Return the withheld text that can be sent at the end; `is_cut` if the token limit ended the text."""
        if is_cut and self._block is not None and not self._is_first:
            return self._before_repetition(self._whole_line()).rstrip(BLANKS)
        sent = self._complete_line()
        if self.is_done:
            return sent
        if self._below.is_repeated:
            return sent + self._held_before(self._below.repeated_from).rstrip(BLANKS)
        return sent + self._without_useless_blanks(self._held)

    def _extend_line(self, fragment: str) -> str:
        """Add to the current line."""
        if self._rest_at is None:
            found = self._rest.find_start(fragment)
            if found is not None:
                self._rest_at = len(self._line) + found
        self._line += fragment
        self._held += fragment
        self._judge(is_whole=self._rest_at is not None)
        if self._position is LinePosition.BEHIND:
            return self._end(self._before_repetition(self._whole_line()).rstrip(BLANKS))
        return self._stream() if self._is_first and self._position is LinePosition.INSIDE else ""

    def _end_line(self, line_break: str) -> str:
        """Complete the current line, if it has visible text."""
        sent = self._complete_line()
        if self.is_done:
            return sent
        if self._block is None:
            return self._end(sent + self._without_useless_blanks(self._held))
        if self._block.is_closed and not self._line.strip(BLANKS):
            end = self._below.repeated_from if self._below.is_repeated else sys.maxsize
            return self._end(self._held_before(end).rstrip(BLANKS))
        self._held += line_break
        self._rest.end_line(self._line)
        self._line = ""
        self._rest_at = None
        self._is_cursor_line = False
        self._position = LinePosition.UNDECIDED
        return sent

    def _complete_line(self) -> str:
        """Apply the rules for whole lines, and return the withheld text that can be sent now."""
        rest_at = self._rest.find_end(self._line)
        if rest_at is not None:
            return self._end_before_rest(rest_at)
        self._rest_at = None
        line = self._whole_line()
        if not line.text:
            return ""
        self._judge(is_whole=True)
        if self._position is LinePosition.BEHIND:
            return self._end(self._before_repetition(line).rstrip(BLANKS))
        if self._is_whole_line_generated():
            self._below.add(line, self._line_start)
            if self._below.is_repeated and (self._block is None or self._below.is_whole):
                return self._end(self._held_before(self._below.repeated_from).rstrip(BLANKS))
        sent = self._take(self._held_before(self._below.repeated_from).rstrip(BLANKS))
        self._is_first = self._is_first and not self._line.strip(BLANKS)
        if self._block is not None:
            self._block.end_line(line)
        return sent

    def _end_before_rest(self, rest_at: int) -> str:
        """End the completion where the current line repeats the rest of the cursor's line."""
        self._rest_at = rest_at
        self._judge(is_whole=True)
        if self._position is LinePosition.BEHIND:
            return self._end(self._before_repetition(self._whole_line()).rstrip(BLANKS))
        return self._end(self._without_useless_blanks(self._held_before(self._line_start + rest_at)))

    def _stream(self) -> str:
        """Return the part of an unfinished line that can be sent."""
        if self._is_whole_line_generated() and self._below.may_become(self._whole_line()):
            return ""
        start = max(0, len(self._line) - len(self._held))
        num_possible = self._rest.num_possible(self._line, start)
        return self._take(self._held[: len(self._held) - num_possible].rstrip(BLANKS))

    def _judge(self, *, is_whole: bool) -> None:
        """Set the position of the current line, if it is still undecided."""
        if self._block is None or self._position is not LinePosition.UNDECIDED:
            return
        line = self._whole_line()
        if line.text:
            is_word_whole = is_whole or self._line[-1] in BLANKS
            self._position = self._block.judge(line, self._rest, is_whole=is_whole, is_word_whole=is_word_whole)

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
        return self._num_taken + len(self._held) - len(self._line)

    def _before_repetition(self, line: Line) -> str:
        """Return the withheld text before the current line, and before the lines that it repeats if it goes on so."""
        start = self._line_start
        return self._held_before(min(start, self._below.repeated_from) if self._below.may_become(line) else start)

    def _held_before(self, end: int) -> str:
        """Return the withheld text before a number of characters of the completion."""
        return self._held[: max(0, end - self._num_taken)]

    def _without_useless_blanks(self, text: str) -> str:
        return text.rstrip(BLANKS) if self._around.has_blank_before_rest else text

    def _take(self, text: str) -> str:
        """Remove `text` from the beginning of the withheld text and return it."""
        self._held = self._held[len(text) :]
        self._num_taken += len(text)
        return text

    def _end(self, text: str) -> str:
        """End the completion with `text` and drop the withheld text."""
        self.is_done = True
        self._held = ""
        return text
