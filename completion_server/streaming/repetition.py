"""Detects completions that repeat text after the cursor: the rest of the cursor's line, or the lines below it.

The rest of the line is of one of these kinds.

A rest that begins with a bracket or quote closes a bracket or quote that is open left of the cursor. The completion may
close all brackets that the cursor's line has open, except those that the rest closes; the next such closing character
is the repetition, and ends the completion. So between "f(" and ")" the text "g(x), y" is kept whole and "g(x))" ends
after "g(x)". No text needs to be withheld.

A rest that begins with an opening bracket, right at the cursor, takes the place of the bracket that the completion
would open there: before "(x)" the text "name(y)" ends after "name". A rest of one other character, such as "=", is
repeated by a completion that begins with it.

A completion repeats any other rest if one of its whole lines ends with that rest. The repetition must begin at the
beginning of a word, unless it is the whole line or the cursor is inside a word. Text that may be the beginning of a
repetition is withheld.

`surroundings` limits how much of the cursor's line is read; both sides of it are read once.
"""

from completion_server.streaming.brackets import CLOSING, Brackets
from completion_server.streaming.surroundings import BLANKS, Line, Surroundings

_QUOTES = "\"'`"
_OPENING = frozenset("([{")
_ENDS_OF_VALUES = frozenset(")]}\"'`")


class RestOfLine:
    """Finds the rest of the cursor's line in a completion, and tracks the completion's brackets."""

    def __init__(self, around: Surroundings) -> None:
        self._core = around.rest.strip(BLANKS)
        self._is_cursor_in_word = _is_word(around.head[-1:]) and _is_word(around.rest[:1])
        self._brackets = Brackets(around.language_id)
        self._brackets.read(around.head)
        self._head_depth = self._brackets.depth
        self._line_depth = self._head_depth
        kept = _kept_open(around.language_id, self._brackets.opened, around.rest)
        self._floor = len(kept)
        self._closing = _closing(self._core, kept)
        self._opening = around.rest[:1] if around.rest[:1] in _OPENING else ""
        is_single = len(self._core) == 1 and not _is_word(self._core) and not self._closing
        self._single = self._core if is_single else ""
        self._last = around.head[-1:]
        """The character before the next one that is read."""
        self._is_begun = False

    @property
    def is_closing_bracket(self) -> bool:
        """Whether the rest begins with a bracket that closes one before the cursor."""
        return self._closing != "" and self._closing in CLOSING

    @property
    def has_own_open(self) -> bool:
        """Whether a bracket or quote that the completion opened was open at the start of the current line."""
        return self._line_depth > self._head_depth

    def find_start(self, fragment: str) -> int | None:
        """Read more of the current line; return the index in `fragment` at which it repeats the rest's first character.

        Only brackets, quotes and a rest of a single character are found in this way.
        """
        if not (self._closing or self._opening or self._single):
            self._brackets.read(fragment)
            return None
        for at, char in enumerate(fragment):
            if self._repeats(char):
                return at
            self._is_begun = self._is_begun or char not in BLANKS
            self._brackets.read_char(char)
            self._last = char
        return None

    def _repeats(self, char: str) -> bool:
        """Return whether the next character of the completion is the one right of the cursor."""
        if char == self._closing:
            return self._closes_kept(char)
        if char == self._opening and self._brackets.depth == self._head_depth and self._may_be_called(char):
            return True
        return char == self._single and not self._is_begun

    def _may_be_called(self, bracket: str) -> bool:
        """Return whether an opening bracket here belongs to the text before it, as in a call or an index."""
        return bracket == "{" or _is_word(self._last) or self._last in _ENDS_OF_VALUES

    def end_line(self) -> None:
        """Read a line break."""
        self._brackets.end_line()
        self._line_depth = self._brackets.depth

    def find_end(self, line: str) -> int | None:
        """Return the index at which a whole `line` begins to repeat a rest that closes no bracket, else None."""
        if self._closing or not self._core:
            return None
        line = line.rstrip(BLANKS)
        at = len(line) - len(self._core)
        return at if at >= 0 and line.endswith(self._core) and self._may_begin_at(line, at) else None

    def num_possible(self, line: str, start: int) -> int:
        """Return how many characters at the end of an unfinished `line`, from `start` on, may be a repetition."""
        if self._closing or not self._core:
            return 0
        stripped = line.rstrip(BLANKS)
        at = line.find(self._core[0], max(start, len(stripped) - len(self._core)))
        while at >= 0:
            is_possible = self._core.startswith(line[at:]) or stripped[at:] == self._core
            if is_possible and self._may_begin_at(line, at):
                return len(line) - at
            at = line.find(self._core[0], at + 1)
        return 0

    def _closes_kept(self, char: str) -> bool:
        """Return whether a closing character closes a bracket or quote that the rest closes."""
        opened = self._brackets.opened
        if len(opened) > self._floor:
            return False
        if opened and opened[-1] in _QUOTES:
            return opened[-1] == char and not self._brackets.is_escaped
        return True

    def _may_begin_at(self, line: str, at: int) -> bool:
        return at == 0 or self._is_cursor_in_word or not (_is_word(line[at - 1]) and _is_word(self._core[0]))


class LinesBelow:
    """Compares whole lines of a completion with the first visible lines below the cursor."""

    def __init__(self, around: Surroundings) -> None:
        self._lines = around.below

    def may_become(self, line: Line) -> bool:
        """Return whether an unfinished line may become a repetition."""
        if not self._lines or _is_trivial(self._lines[0]):
            return False
        return line.indent == self._lines[0].indent and self._lines[0].text.startswith(line.text)

    def is_repetition(self, line: Line) -> bool:
        """Return whether a line repeats the first line below and is not trivial (brackets only)."""
        return line in self._lines[:1] and not _is_trivial(line)

    def may_begin_pair(self, line: Line) -> bool:
        """Return whether a line equals one below the cursor and may be the first of a repeated pair."""
        return line in self._lines[:-1]

    def is_pair(self, first: Line, second: Line) -> bool:
        """Return whether two lines follow one another below the cursor, and are not both trivial."""
        if _is_trivial(first) and _is_trivial(second):
            return False
        return (first, second) in zip(self._lines, self._lines[1:], strict=False)


def _kept_open(language_id: str, opened: tuple[str, ...], rest: str) -> tuple[str, ...]:
    """Return the brackets that the rest of the line closes; a completion leaves these open."""
    own = Brackets(language_id)
    own.read(rest)
    depth = own.depth
    own.end_line()
    if own.has_crossing or own.depth < depth:  # the rest has crossing brackets, or opens a quote
        return opened
    wanted = own.unmatched[::-1]
    at = "".join(opened).find(wanted)
    return opened if at < 0 else opened[: at + len(wanted)]


def _closing(core: str, kept: tuple[str, ...]) -> str:
    """Return the first character of the rest if it closes a bracket or quote before the cursor, else ""."""
    first, last_kept = core[:1], kept[-1:]
    if last_kept and last_kept[0] in _QUOTES:
        return first if first == last_kept[0] else ""
    return first if first and first in CLOSING else ""


def _is_trivial(line: Line) -> bool:
    return not any(char.isalnum() for char in line.text)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
