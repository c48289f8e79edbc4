"""Tracks open brackets and quotes in code of any language: an approximation without a parser.

Brackets inside quotes don't count. A quote ends with its line, except a backtick. Comments are read like code, so an
apostrophe in a comment hides the rest of its line; then the completion is left unchanged.

A regular expression skips all characters except brackets, quotes and escapes. Of a line that may open a block only the
last 2,048 characters are read.
"""

import re

CLOSING = ")]}"
_CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
_QUOTES = "\"'`"
_QUOTES_WHERE_APOSTROPHES_ARE_NAMES = '"'
_LANGUAGES_WITH_APOSTROPHES_IN_NAMES = frozenset({"rust", "haskell", "ocaml", "lisp", "scheme", "clojure", "verilog"})
_OPENING_END = re.compile(r"(?::|=>|->|\b(?:do|then|else|begin))\s*(?:\s(?:#|//).*)?$")
_RELEVANT = re.compile(r"\\.?|[()\[\]{}\"'`]", re.DOTALL)
"""The characters that may change the state: brackets, quotes, and a backslash with the character that it may escape."""
_MAX_OPENER = 2048
_COMMENT_START = re.compile(r"#\s|//|/\*|\*\s|--\s")


class Brackets:
    """The brackets and quotes that are open after the text read so far."""

    def __init__(self, language_id: str = "") -> None:
        """Begin without an open bracket."""
        has_names = language_id in _LANGUAGES_WITH_APOSTROPHES_IN_NAMES
        self._quotes = _QUOTES_WHERE_APOSTROPHES_ARE_NAMES if has_names else _QUOTES
        self._open: list[str] = []
        self._is_escaped = False
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
    def is_escaped(self) -> bool:
        """Whether the next character follows a backslash inside quotes."""
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
    """Return whether a line of code opens a block: it leaves a bracket open, or ends like an opener ("if x:", "do")."""
    line = line.strip()
    if _COMMENT_START.match(line):
        return False
    line = line[-_MAX_OPENER:]
    brackets = Brackets(language_id)
    brackets.read(line)
    brackets.end_line()
    return brackets.depth > 0 or _OPENING_END.search(line) is not None
