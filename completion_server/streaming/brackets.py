"""Brackets and quotes, read a character at a time in any language: an approximation that never needs a parser.

Brackets inside quotes don't count. A quote ends with its line, except a backtick. Comments are read like code, so an
apostrophe in one hides the rest of its line, which errs on the side of leaving a completion as it is.

Only brackets, quotes and what a backslash stands before take time to read. Of a line that may announce a body the last
2,048 characters are read.
"""

import re

CLOSING = ")]}"
_CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
_QUOTES = "\"'`"
_QUOTES_WHERE_APOSTROPHES_ARE_NAMES = '"'
_LANGUAGES_WITH_APOSTROPHES_IN_NAMES = frozenset({"rust", "haskell", "ocaml", "lisp", "scheme", "clojure", "verilog"})
_OPENING_END = re.compile(r"(?::|=>|->|\b(?:do|then|else|begin))\s*(?:\s(?:#|//).*)?$")
_RELEVANT = re.compile(r"\\.?|[()\[\]{}\"'`]", re.DOTALL)
"""What can change what is open; with a backslash, the character that it may escape."""
_MAX_OPENER = 2048
_COMMENT_START = re.compile(r"#\s|//|/\*|\*\s|--\s")


class Brackets:
    """What is open after the text read so far."""

    def __init__(self, language_id: str = "") -> None:
        """Begin with nothing open."""
        has_names = language_id in _LANGUAGES_WITH_APOSTROPHES_IN_NAMES
        self._quotes = _QUOTES_WHERE_APOSTROPHES_ARE_NAMES if has_names else _QUOTES
        self._open: list[str] = []
        self._is_escaped = False
        self.unmatched = ""
        """Closing brackets that closed nothing, because nothing was open."""
        self.has_crossing = False
        """Whether a closing bracket closed nothing, because one of another kind was open."""

    @property
    def opened(self) -> tuple[str, ...]:
        """The closing characters of what is open, the outermost first."""
        return tuple(self._open)

    @property
    def depth(self) -> int:
        """How many brackets and quotes are open."""
        return len(self._open)

    @property
    def is_escaped(self) -> bool:
        """Whether the next character stands behind a backslash in quotes."""
        return self._is_escaped

    def read(self, text: str) -> None:
        """Read more text, without line breaks."""
        if self._is_escaped and text:
            self.read_char(text[0])
            text = text[1:]
        for char in "".join(_RELEVANT.findall(text)):
            self.read_char(char)

    def read_char(self, char: str) -> None:
        """Read one character."""
        if self._open and self._open[-1] in self._quotes:
            self._read_in_quotes(char)
        elif char in _CLOSER_OF:
            self._open.append(_CLOSER_OF[char])
        elif char in CLOSING:
            self._close(char)
        elif char in self._quotes:
            self._open.append(char)

    def end_line(self) -> None:
        """Read a line break."""
        self._is_escaped = False
        while self._open and self._open[-1] in "\"'":
            self._open.pop()

    def _close(self, char: str) -> None:
        if not self._open:
            self.unmatched += char
        elif self._open[-1] == char:
            self._open.pop()
        else:
            self.has_crossing = True

    def _read_in_quotes(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == self._open[-1]:
            self._open.pop()


def opens_block(line: str, language_id: str = "") -> bool:
    """Return whether a line of code announces a body: it leaves a bracket open, or ends like one ("if x:", "do")."""
    line = line.strip()
    if _COMMENT_START.match(line):
        return False
    line = line[-_MAX_OPENER:]
    brackets = Brackets(language_id)
    brackets.read(line)
    brackets.end_line()
    return brackets.depth > 0 or _OPENING_END.search(line) is not None
