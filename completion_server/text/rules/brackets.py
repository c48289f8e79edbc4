"""Tracks open brackets and quotes in code of any language: an approximation without a parser.

Brackets inside quotes don't count. A quote ends with its line, unless the language has strings of several lines with
it. An apostrophe right after a word, as in "don't" or `8'h3f`, is no quote, except after the prefix of a string.
Comments are read like code.

A regular expression skips all characters except brackets, quotes and escapes. Of a line that may open a block only the
last 2,048 characters are read.
"""

import re
import sys
from copy import copy
from enum import Enum, auto

from completion_server.core.languages import UNKNOWN, Syntax

OPENING, CLOSING = "([{", ")]}"
_CLOSER_OF = dict(zip(OPENING, CLOSING, strict=True))
_OPENING_END = re.compile(r"(?::|=>|->|\b(?:do|then|else|begin))\s*(?:\s(?:#|//).*)?$", re.IGNORECASE)
_QUOTES = frozenset("\"'`")
_OPEN_TAG = re.compile(r"<[a-zA-Z][^<>]*$")
_RELEVANT = re.compile(r"\\.?|[()\[\]{}\"'`]", re.DOTALL)
"""The characters that may change the state: brackets, quotes, and a backslash with the character that it may escape."""
_RELEVANT_WITH_MORE = re.compile(r"'(?:\\.[^']*'?|.{0,2})|\\.?|<.?|[>()\[\]{}\"`]", re.DOTALL)
"""The same for apostrophes that quote one character, and for "<" and ">"."""
_STRING_PREFIX = re.compile(r"(?:^|\W)(?:[rRbBuUfFtTLNE]|[rRbBfFtT]{2}|u8)$|-\w$")
_HOLE = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*)$")
"""A value in a string up to the cursor, which may have braces of its own."""
_TAIL_LENGTH = 4
_MAX_OPENER = 2048


class _Character(Enum):
    """What was read of a quoted character, as in `'('`."""

    NONE = auto()
    BEGUN = auto()
    READ = auto()
    ESCAPED = auto()
    """A backslash was read."""
    ESCAPE = auto()
    """The escape goes on to the closing apostrophe."""


class Brackets:
    """The brackets and quotes that are open after the text read so far."""

    def __init__(self, syntax: Syntax = UNKNOWN.syntax, *, has_angles: bool = False) -> None:
        """Begin without an open bracket. With `has_angles` "<" and ">" are brackets, too, as in "List<int>"."""
        self._syntax = syntax
        self.has_angles = has_angles
        self._relevant = _RELEVANT_WITH_MORE if has_angles or syntax.has_characters else _RELEVANT
        self._open: list[str] = []
        self.is_escaped = False
        """Whether the next character follows a backslash."""
        self.is_in_hole = False
        """Whether a value inside a string is read."""
        self._character = _Character.NONE
        self._tail = ""
        """The last characters read, since a string of several lines began or ended."""
        self.lowest = 0
        """The smallest depth since the beginning, or since the caller set it."""
        self.unmatched = ""
        """Closing brackets that were read while no bracket was open."""
        self.has_crossing = False
        """Whether a closing bracket was read while a bracket of another kind was open."""

    @property
    def opened(self) -> tuple[str, ...]:
        """The closing characters of the open brackets and quotes, the outermost first."""
        return tuple(self._open)

    @property
    def depth(self) -> int:
        """Number of open brackets and quotes."""
        return len(self._open)

    @property
    def is_in_string(self) -> bool:
        """Whether a quote is open."""
        return bool(self._open) and self._open[-1][0] in _QUOTES

    def read_hole(self, line: str) -> None:
        """Read the value at the end of a `line` that was read up to inside a string, as in `f"{x`, as code."""
        hole = _HOLE.search(line)
        if hole is not None and self._open[-1][0] not in hole[1]:
            self._open.append("}")
            self.is_in_hole = True
            self.read(hole[1])

    def read(self, text: str) -> None:
        """Read more text, without line breaks."""
        num_read = 0
        while num_read < len(text) and (
            self.is_escaped or self._character is not _Character.NONE or self._tail.endswith("<")
        ):  # the next character must be read whatever it is
            self.read_char(text[num_read])
            num_read += 1
        for match in self._relevant.finditer(text, num_read):
            self._tail = (self._tail + text[num_read : match.start()])[-_TAIL_LENGTH:]
            for char in match.group():
                self.read_char(char)
            num_read = match.end()
        self._tail = (self._tail + text[num_read:])[-_TAIL_LENGTH:]

    def read_char(self, char: str) -> None:
        """Read one character."""
        before = self._tail
        self._tail = (before + char)[-_TAIL_LENGTH:]
        if self.has_angles and before.endswith("<"):
            self._undo_comparison(char)
        if self._character is not _Character.NONE and self._is_quoted_character(char):
            return
        if self.is_escaped:
            self.is_escaped = False
        elif char == "\\":
            self.is_escaped = self.is_in_string or not self._syntax.has_characters
        elif self.is_in_string:
            self._read_in_quotes(char)
        elif char in _QUOTES:
            self._read_quote(char, before)
        else:
            self._read_bracket(char, before)

    def _read_bracket(self, char: str, before: str) -> None:
        if char in _CLOSER_OF:
            self._open.append(_CLOSER_OF[char])
        elif char in CLOSING or (self.has_angles and char == ">" and before[-1:] not in ("-", "=", " ")):
            self._close(char)
        elif self.has_angles and char == "<":
            self._open.append(">")

    def start_here(self, outside: str = "") -> None:
        """Count `lowest` and what is unmatched from here on; open brackets with the closing characters `outside`."""
        self._open[:0] = outside
        self.lowest = len(self._open)
        self.unmatched = ""
        self.has_crossing = False

    def copy(self) -> "Brackets":
        """Return a copy that reads on by itself."""
        copied = copy(self)
        copied._open = self._open.copy()
        return copied

    def find(self, pattern: re.Pattern[str], text: str, max_depth: int = sys.maxsize) -> int | None:
        """Return where a pattern first matches in a text that follows, outside quotes, at `max_depth` or less."""
        brackets, num_read = None, 0
        for match in pattern.finditer(text):  # most texts have none: copying would be in vain
            brackets = brackets or self.copy()
            brackets.read(text[num_read : match.start()])
            num_read = match.start()
            if not brackets.is_in_string and brackets.depth <= max_depth:
                return num_read
        return None

    def end_line(self) -> None:
        """Read a line break."""
        self.is_escaped = False
        self._character = _Character.NONE
        while self._open and self._open[-1] in "\"'`>" and self._open[-1] not in self._syntax.multiline_quotes:
            self._open.pop()
        self._tail = "\n"

    def _close(self, char: str) -> None:
        while char != ">" and self._open and self._open[-1] == ">":
            self._open.pop()
        if not self._open:
            self.unmatched += char
        elif self._open[-1] == char:
            self._pop()
        elif char != ">":
            self.has_crossing = True

    def _pop(self) -> None:
        self._open.pop()
        self.lowest = min(self.lowest, len(self._open))

    def _read_quote(self, char: str, before: str) -> None:
        if before.endswith(char * 2) and char * 3 in self._syntax.multiline_quotes:
            self._open.append(char * 3)
            self._tail = ""
        elif char == "'" and not self._may_begin_string_after(before):
            return
        elif char in self._syntax.quotes:
            self._open.append(char)
        elif char == "'" and self._syntax.has_characters:
            self._character = _Character.BEGUN

    def _may_begin_string_after(self, text: str) -> bool:
        """Return whether an apostrophe after a text is a quote, not part of a word or of a lifetime of Rust."""
        if not is_word(text[-1:]):
            return self._syntax.has_characters or not text.endswith("&")
        return self._syntax.has_joined_strings or _STRING_PREFIX.search(text) is not None

    def _is_quoted_character(self, char: str) -> bool:
        """Read a character after an apostrophe that may quote it; return whether it does, or ends the quote."""
        match self._character:
            case _Character.BEGUN:
                self._character = _Character.ESCAPED if char == "\\" else _Character.READ
            case _Character.READ:
                self._character = _Character.NONE
                return char == "'"
            case _Character.ESCAPED:
                self._character = _Character.ESCAPE
            case _Character.ESCAPE if char == "'":
                self._character = _Character.NONE
        return True

    def _read_in_quotes(self, char: str) -> None:
        closer = self._open[-1]
        if char == closer[0] and self._tail.endswith(closer):
            self._pop()
            self._tail = self._tail if len(closer) == 1 else ""

    def _undo_comparison(self, following: str) -> None:
        """Take "<" back, if the character that follows shows that it is an operator."""
        if self._open and self._open[-1] == ">" and following in " \t=<":
            self._open.pop()


def opens_block(line: str, syntax: Syntax = UNKNOWN.syntax) -> bool:
    """Return whether a line opens a block: it leaves a bracket or tag open, or ends like an opener ("if x:", "do")."""
    line = line.strip()
    if syntax.comment.match(line):
        return False
    line = line[-_MAX_OPENER:]
    if _OPENING_END.search(line) or _OPEN_TAG.search(line):
        return True
    brackets = Brackets(syntax)
    brackets.read(line)
    brackets.end_line()
    return brackets.depth > 0


def is_word(char: str) -> bool:
    """Return whether a character belongs to a word."""
    return char.isalnum() or char == "_"
