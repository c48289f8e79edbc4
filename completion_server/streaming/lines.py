"""Applies the rules of lines and blocks to streamed text. Does not handle stop strings.

The first visible line is sent as it arrives, except text that may be a repetition and blanks at its end. With
SINGLE_LINE the completion ends there. With MULTI_LINE each further line is sent when it is complete, because the length
limit may cut it in half; a line that ends the block is recognised earlier, at its first visible character or word.
"""

import re

from completion_server.core.request import Mode
from completion_server.streaming.block import CodeBlock, LinePosition
from completion_server.streaming.repetition import LinesBelow, RestOfLine
from completion_server.streaming.surroundings import BLANKS, Line, Surroundings

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
        self._is_cursor_line = True
        self._is_first = True
        self._position = LinePosition.UNDECIDED
        self._suspect: Line | None = None
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
            return self._held_before_line().rstrip(BLANKS)
        sent = self._complete_line()
        if self.is_done:
            return sent
        return sent + self._without_useless_blanks(self._held)

    def _extend_line(self, fragment: str) -> str:
        """Add to the current line."""
        rest_at = self._rest.find_start(fragment)
        fragment = fragment[:rest_at]
        self._line += fragment
        self._held += fragment
        self._judge(is_whole=rest_at is not None)
        if self._position is LinePosition.BEHIND:
            return self._end(self._held_before_line().rstrip(BLANKS))
        if rest_at is not None:
            has_blank = self._around.rest[0] in BLANKS
            return self._end(self._held.rstrip(" \t") if has_blank else self._held)
        return self._stream() if self._is_first and self._position is LinePosition.INSIDE else ""

    def _end_line(self, line_break: str) -> str:
        """Complete the current line, if it has visible text."""
        sent = self._complete_line()
        if self.is_done:
            return sent
        if self._block is None:
            return self._end(sent + self._without_useless_blanks(self._held))
        self._held += line_break
        self._line = ""
        self._is_cursor_line = False
        self._position = LinePosition.UNDECIDED
        self._rest.end_line()
        return sent

    def _complete_line(self) -> str:
        """Apply the rules for whole lines, and return the withheld text that can be sent now."""
        line = self._whole_line()
        if not line.text:
            return ""
        self._judge(is_whole=True)
        if self._position is LinePosition.BEHIND:
            return self._end(self._held_before_line().rstrip(BLANKS))
        rest_at = self._rest.find_end(self._line)
        if rest_at is not None:
            kept = self._held[: len(self._held) - (len(self._line) - rest_at)]
            return self._end(self._without_useless_blanks(kept))
        if self._is_whole_line_generated():
            if self._suspect is not None and self._below.is_pair(self._suspect, line):
                return self._end("")
            if self._below.is_repetition(line):
                return self._end(self._held_before_line().rstrip(BLANKS))
        sent = self._release(line)
        self._is_first = self._is_first and not self._line.strip(BLANKS)
        if self._block is not None:
            self._block.end_line(line)
            self.is_done = self._block.is_over
        return sent

    def _release(self, line: Line) -> str:
        """Return the text to send after a whole line, without the line if the next one decides whether it repeats."""
        is_suspect = not self._is_first and self._below.may_begin_pair(line)
        self._suspect = line if is_suspect else None
        return self._take((self._held_before_line() if is_suspect else self._held).rstrip(BLANKS))

    def _stream(self) -> str:
        """Return the part of an unfinished line that can be sent."""
        if self._is_whole_line_generated() and self._below.may_become(self._whole_line()):
            return ""
        start = max(0, len(self._line) - len(self._held))
        num_possible = self._rest.num_possible(self._line, start)
        return self._take(self._held[: len(self._held) - num_possible].rstrip(BLANKS))

    def _judge(self, *, is_whole: bool) -> None:
        """Set the position of the current line, if it is still undecided."""
        if self._position is not LinePosition.UNDECIDED:
            return
        line = self._whole_line()
        if not line.text:
            return
        if self._block is None or (self._is_cursor_line and not self._around.is_head_blank):
            self._position = LinePosition.INSIDE
        else:
            is_word_whole = is_whole or self._line[-1] in BLANKS
            self._position = self._block.judge(line, is_whole=is_word_whole, has_own_open=self._rest.has_own_open)

    def _whole_line(self) -> Line:
        """Return the current line, with the document's text left of the cursor if it is the cursor's line."""
        return Line.of(self._around.head + self._line if self._is_cursor_line else self._line)

    def _is_whole_line_generated(self) -> bool:
        return not self._is_cursor_line or (self._around.is_head_blank and self._around.is_rest_blank)

    def _held_before_line(self) -> str:
        return self._held[: max(0, len(self._held) - len(self._line))]

    def _without_useless_blanks(self, text: str) -> str:
        return text.rstrip(BLANKS) if self._around.has_blank_before_rest else text

    def _take(self, text: str) -> str:
        """Remove `text` from the beginning of the withheld text and return it."""
        self._held = self._held[len(text) :]
        return text

    def _end(self, text: str) -> str:
        """End the completion with `text` and drop the withheld text."""
        self.is_done = True
        self._held = ""
        return text
