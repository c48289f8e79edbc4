"""Detects completions that repeat text after the cursor: the rest of the cursor's line, or the lines below it.

The rest of the line is of one of these kinds.

A rest that begins with a bracket or quote closes a bracket or quote that is open left of the cursor, also around a
value inside a string, as in `f"{x}"`. The completion may close all brackets that the cursor's line has open, except
those that the rest closes; the next such closing character is taken for the repetition, if the whole line needs it. So
between "f(" and ")" the text "g(x), y" is kept whole, "g(x))" ends after "g(x)", and "x) + g(y" is kept whole. Text
from that character on is withheld to the end of its line.

A rest that begins with an opening bracket, right at the cursor, takes the place of the bracket that the completion
would open there: before "(x)" the text "name(y)" ends after "name", as does "name(z) as y:" before "(x) as y:". A rest
of one other character, such as "=", is repeated by a completion that begins with it.

A completion repeats any other rest if one of its whole lines ends with that rest, and does not close brackets of its
own with it. The repetition must begin at the beginning of a word, unless it is the whole line or the cursor is inside
a word. Text that may be the beginning of a repetition is withheld. A comment hides no repetition: before ":" the text
"x:  # why" ends after "x", and before ":  # why" so does "x:". A comment behind a repetition is withheld with it.

The rest may also be repeated with changes (see `changes`).

`surroundings` limits how much of the cursor's line is read; both sides of it are read once.
"""

import re
import sys
from itertools import islice

from completion_server.text.rules.brackets import CLOSING, Brackets, is_word
from completion_server.text.rules.changes import ChangedRest
from completion_server.text.rules.surroundings import BLANKS, Line, Surroundings

_QUOTES = "\"'`"
_OPENING = frozenset("([{")
_ENDS_OF_VALUES = frozenset(")]}\"'`")
_NUM_LINES_BELOW = 8
_CLOSING_TAG = re.compile(r"</([\w.:-]+)")


class RestOfLine:
    """Finds the rest of the cursor's line in a completion, and tracks the completion's brackets."""

    def __init__(self, around: Surroundings) -> None:
        self._core = around.rest.strip(BLANKS)
        self._is_cursor_in_word = is_word(around.rest[:1]) and is_word(around.head[-1:])
        self._brackets = _read_head(around, has_angles=self._core.startswith(">"))
        self._is_in_hole = self._brackets.is_in_hole
        self._brackets.start_here()
        opened = self._brackets.opened
        self._kept = self._open_what_rest_closes(around) if self._core else opened
        self._is_opened_in_line = self._kept != () and self._kept == opened[: len(self._kept)]
        """Whether the cursor's line opened what the rest closes."""
        self._opened = self._brackets.opened
        self._before_line = self._brackets.copy()
        """The brackets at the start of the current line."""
        self._comment = around.syntax.comment_behind_code
        self._code = self._without_comment(self._core) or self._core
        """The rest without a comment, unless it is one."""
        self._changes = ChangedRest(around.rest, self._code, self._before_line, self._kept)
        self.has_own_open = False
        """Whether a bracket or quote that the completion opened was open at the start of the current line."""
        self._closing = self._closing_of_rest()
        self._has_brackets_only = self._closing != "" and (
            set(self._code) <= set(CLOSING) or self._closing not in CLOSING
        )
        self._opening = around.rest[:1] if around.rest[:1] in _OPENING else ""
        is_single = len(self._core) == 1 and not is_word(self._core)
        self._target = self._closing or self._opening or (self._core if is_single else "")
        self._is_single = is_single and not self._closing and not self._opening
        self._last = around.head[-1:]
        """The character before the next one that is read."""
        self._is_begun = False
        self._num_read = 0
        """Characters read of the current line."""
        self._repeated_at: int | None = None
        """Index in the current line of the first character that is the one right of the cursor, in its role."""

    def _open_what_rest_closes(self, around: Surroundings) -> tuple[str, ...]:
        """Return the brackets that the rest of the line closes; a completion leaves these open.

        Those that an earlier line opened are opened in `_brackets`, outside of those of the cursor's line.
        """
        rest = Brackets(around.syntax, has_angles=self._brackets.has_angles)
        rest.read(self._core)
        depth = rest.depth
        rest.end_line()
        opened = self._brackets.opened
        if rest.has_crossing or rest.depth < depth:  # the rest has crossing brackets, or opens a quote
            return opened
        wanted = rest.unmatched[::-1]
        at = "".join(opened).find(wanted)
        if at >= 0:
            return opened[: at + len(wanted)]
        if self._brackets.is_in_string:
            return opened
        num_earlier = next(num for num in range(len(wanted) + 1) if "".join(opened).startswith(wanted[num:]))
        if around.has_open_above(wanted[:num_earlier]):
            self._brackets.start_here(outside=wanted[:num_earlier])
        return tuple(wanted)

    def _closing_of_rest(self) -> str:
        """Return the first character of the rest if it closes a bracket or quote before the cursor, else ""."""
        first, last_kept = self._core[:1], self._kept[-1:]
        if last_kept and last_kept[0] in _QUOTES:
            return first if first == last_kept[0] else ""
        return first if first and (first in CLOSING or last_kept == (first,)) else ""

    @property
    def is_closing_bracket(self) -> bool:
        """Whether the rest begins with a bracket that closes one before the cursor."""
        return self._closing != "" and self._closing in CLOSING and not self._is_in_hole

    @property
    def is_in_string(self) -> bool:
        """Whether the current line began inside a string of several lines."""
        return self._before_line.is_in_string

    def num_open(self, closing: str) -> int:
        """Return how many brackets with a closing character were open at the start of the current line."""
        return self._before_line.opened.count(closing)

    def find_start(self, fragment: str) -> int | None:
        """Read more of the current line; return the index in `fragment` from which on it may repeat the rest.

        Only brackets, quotes and a rest of a single character are found in this way; the line's end decides.
        """
        if self._repeated_at is not None:
            return 0
        if not self._target:
            return None
        at = 0
        while (found := fragment.find(self._target, at)) >= 0:
            self._read(fragment[at:found])
            if self._repeats(self._target):
                self._repeated_at = self._num_read
                return found
            self._read(self._target)
            at = found + 1
        self._read(fragment[at:])
        return None

    def _read(self, text: str) -> None:
        """Read text that repeats nothing."""
        if text:
            self._brackets.read(text)
            self._is_begun = self._is_begun or bool(text.strip(BLANKS))
            self._last = text[-1]
            self._num_read += len(text)

    def _repeats(self, char: str) -> bool:
        """Return whether the next character of the completion may be the one right of the cursor."""
        if char == self._closing:
            return self._closes_kept(char)
        if char == self._opening and self._brackets.depth == len(self._opened):  # as in a block, a call or an index
            return char == "{" or is_word(self._last) or self._last in _ENDS_OF_VALUES
        return self._is_single and not self._is_begun

    def end_line(self, line: str) -> None:
        """Read the line break after the current `line`."""
        num_read = self._num_read if self._repeated_at is None else self._repeated_at
        self._brackets.read(line[num_read:])
        self._brackets.end_line()
        self._before_line = self._brackets.copy()
        self.has_own_open = self._brackets.depth > self._brackets.lowest
        self._num_read = 0
        self._repeated_at = None

    def find_end(self, line: str) -> int | None:
        """Return the index at which a whole `line` begins to repeat the rest, else None."""
        visible = line.rstrip(BLANKS)
        if self._repeated_at is None:
            code = self._without_comment(line)
            for text, core in ((visible, self._core), (code, self._code)):
                if self._is_ended_by(text, core, is_whole=text != line):
                    return len(text) - len(core)
            return self._changes.find_end(line, code)
        line = visible
        at = len(line) - len(self._core)
        if line.endswith(self._core) and at >= self._repeated_at and self._fits(line[:at]):
            return at
        is_value = line[-1:] in _ENDS_OF_VALUES or self._changes.ends_like_rest(line)
        return None if self._fits(line) and (self._closing or not is_value) else self._repeated_at

    def _is_ended_by(self, line: str, core: str, *, is_whole: bool) -> bool:
        """Return whether a line ends with a repetition of the rest, of which `core` is left without a comment."""
        if not core or self._has_brackets_only or not line.endswith(core):
            return False
        may_begin = self._may_begin_at(line, len(line) - len(core), is_whole=is_whole)
        return may_begin and not self._closes_own_tag(line) and not self._closes_own_brackets(line)

    def _without_comment(self, line: str) -> str:
        """Return a line without blanks and a comment at its end."""
        return line[: self._before_line.find(self._comment, line)].rstrip(BLANKS)

    def _fits(self, line: str) -> bool:
        """Return whether the rest closes what is open after a beginning of the current line, which repeats in part."""
        if self._is_single:
            return False
        brackets = self._brackets.copy()
        brackets.read(line[self._repeated_at :])
        if self._is_in_hole and brackets.is_in_string:
            brackets.read_hole(line[self._repeated_at :])
        if brackets.is_in_string and self._closing == brackets.opened[-1][0]:
            quote = brackets.opened[-1]
            return len(quote) == 1 or self._core.startswith(quote) or line.endswith(quote[1:])
        wanted = self._kept if self._closing else self._opened
        return not brackets.unmatched and not brackets.has_crossing and brackets.opened == wanted

    def _closes_own_tag(self, line: str) -> bool:
        """Return whether the rest is a closing tag, and the line has as many tags that open as such that close."""
        tag = _CLOSING_TAG.match(self._core)
        if tag is None:
            return False
        return len(re.findall(rf"<{tag[1]}\b", line)) == line.count(f"</{tag[1]}")

    def _closes_own_brackets(self, line: str) -> bool:
        """Return whether a line that ends like the rest closes brackets of its own so, and none of the rest's."""
        if not self._is_opened_in_line:
            return False
        brackets = self._brackets.copy()
        brackets.read(line[self._num_read :])
        is_kept = self.has_own_open or (brackets.opened == self._opened and brackets.lowest == len(self._opened))
        return is_kept and not brackets.is_in_string

    def num_possible(self, line: str, start: int) -> int:
        """Return how many characters at the end of an unfinished `line`, from `start` on, may be a repetition."""
        if self._repeated_at is not None:
            return len(line) - max(start, self._repeated_at)
        if self._has_brackets_only or not self._core:
            return 0
        changed_at = self._changes.find_start(line)
        num_changed = 0 if changed_at is None else len(line) - max(start, changed_at)
        stripped = line.rstrip(BLANKS)
        code = self._without_comment(line)
        at = line.find(self._core[0], max(start, len(code) - len(self._core)))
        while at >= 0:
            is_possible = self._core.startswith(line[at:]) or stripped[at:] == self._core or code[at:] == self._code
            if is_possible and self._may_begin_at(line, at):
                return max(len(line) - at, num_changed)
            at = line.find(self._core[0], at + 1)
        return num_changed

    def _closes_kept(self, char: str) -> bool:
        """Return whether a closing character closes a bracket or quote that the rest closes."""
        opened = self._brackets.opened
        if len(opened) > len(self._kept):
            return False
        if opened and opened[-1] in _QUOTES:
            return opened[-1] == char and not self._brackets.is_escaped
        return True

    def _may_begin_at(self, line: str, at: int, *, is_whole: bool = False) -> bool:
        """Return whether a repetition may begin at an index; `is_whole` if a word cannot go on at the line's end."""
        is_in_word = self._is_cursor_in_word and not is_whole
        return at == 0 or is_in_word or not (is_word(line[at - 1]) and is_word(self._core[0]))


def _read_head(around: Surroundings, *, has_angles: bool) -> Brackets:
    """Return the brackets that are open at the cursor; "<" is one only if it is open there."""
    brackets = Brackets(around.syntax, has_angles=has_angles)
    brackets.read(around.head)
    if brackets.is_in_string and "}" in around.rest.partition(brackets.opened[-1][0])[0]:
        brackets.read_hole(around.head)
    return _read_head(around, has_angles=False) if has_angles and ">" not in brackets.opened else brackets


class LinesBelow:
    """Compares whole lines of a completion with the first visible lines below the cursor.

    Two statements often begin alike, so lines that are the first ones below are withheld until they are all that is
    known, or until the completion ends.
    """

    def __init__(self, around: Surroundings) -> None:
        self._unread = islice(around.lines_below(), _NUM_LINES_BELOW)
        self._lines: list[Line] = []
        """The lines below, as far as they were needed."""
        self._repeated: list[Line] = []
        """The last lines of the completion, if they are the first ones below."""
        self._starts: list[int] = []
        """The number of characters before each of them."""

    @property
    def repeated_from(self) -> int:
        """Number of characters before the lines that are the first ones below; beyond any text without such lines."""
        return self._starts[0] if self._starts else sys.maxsize

    @property
    def is_repeated(self) -> bool:
        """Whether the last lines are the first ones below and not trivial (brackets only)."""
        return any(char.isalnum() for line in self._repeated for char in line.text)

    @property
    def is_whole(self) -> bool:
        """Whether the last lines are all that is known below."""
        return self._next() is None

    def may_become(self, line: Line) -> bool:
        """Return whether an unfinished line may become the line below that follows those already repeated."""
        below = self._next()
        if below is None:
            return False
        return not line.text or (line.indent == below.indent and below.text.startswith(line.text))

    def add(self, line: Line, start: int) -> None:
        """Add a whole line of the completion; `start` is the number of characters before it."""
        self._next()
        self._repeated.append(line)
        self._starts.append(start)
        while self._repeated != self._lines[: len(self._repeated)]:
            del self._repeated[0], self._starts[0]

    def _next(self) -> Line | None:
        """Return the line below that follows those already repeated."""
        num_repeated = len(self._repeated)
        if num_repeated == len(self._lines):
            self._lines.extend(islice(self._unread, 1))
        return self._lines[num_repeated] if num_repeated < len(self._lines) else None
