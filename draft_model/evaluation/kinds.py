"""Classifies characters of code by kind, with Python's own tokenizer: the kinds of the acceptance table.

Each token gets the first kind that fits:

    comments    comments, and strings that are statements of their own (docstrings)
    syntax      brackets, commas, colons, dots, semicolons, line ends and indentation
    idioms      keywords, builtins, self and cls, names with two underscores around them, and the names after `import`
    logic       operators, numbers, and other strings
    identifiers all other names

At an error (a piece of a file may begin with an indentation that no later line fits) the tokenizer restarts. A
character at which it can't start counts as logic.
"""

import builtins
import io
import keyword
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

_SYNTAX = frozenset("()[]{},:.;") | {"->"}
_KNOWN = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"self", "cls"}
_LAYOUT = frozenset({tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER})
_NO_PART = frozenset({tokenize.NL, tokenize.COMMENT})
"""Tokens outside logical lines: they may stand anywhere, inside brackets too."""
_BEFORE_STATEMENT = _LAYOUT - _NO_PART


class Kind(Enum):
    """The kinds, which are the rows of the table."""

    SYNTAX = "closing brackets and syntax"
    IDIOMS = "common idioms"
    IDENTIFIERS = "identifiers"
    COMMENTS = "comments and docstrings"
    LOGIC = "logic"


@dataclass
class _Line:
    """The state of a logical line: its previous token, and whether it is an import."""

    previous: int = tokenize.NEWLINE
    is_import: bool = field(default=False)

    def kind_of(self, token: tokenize.TokenInfo) -> Kind:
        """The kind of the next token."""
        kind = self._decide(token)
        if token.type == tokenize.NEWLINE:
            self.is_import = False
        elif token.string in {"import", "from"} and self.previous in _BEFORE_STATEMENT:
            self.is_import = True
        if token.type not in _NO_PART:
            self.previous = token.type
        return kind

    def _decide(self, token: tokenize.TokenInfo) -> Kind:
        if token.type == tokenize.COMMENT:
            return Kind.COMMENTS
        if token.type in _LAYOUT or token.string in _SYNTAX:
            return Kind.SYNTAX
        if token.type == tokenize.NAME:
            return Kind.IDIOMS if self.is_import or _is_known(token.string) else Kind.IDENTIFIERS
        if token.type == tokenize.STRING and self.previous in _BEFORE_STATEMENT:
            return Kind.COMMENTS
        return Kind.LOGIC


def _is_known(name: str) -> bool:
    return name in _KNOWN or (name.startswith("__") and name.endswith("__"))


def kinds_of(text: str) -> list[Kind]:
    """The kind of every character of `text`; blanks between tokens count with the token behind them."""
    kinds: list[Kind] = []
    while len(kinds) < len(text):
        rest = text[len(kinds) :]
        found = _kinds_up_to_a_fault(rest) or _kinds_up_to_a_fault(rest[: rest.find("\n") + 1] or rest)
        kinds += found or [Kind.LOGIC]
    return kinds


def _kinds_up_to_a_fault(text: str) -> list[Kind]:
    """The kinds of the characters up to the first error of Python's tokenizer."""
    starts = _line_starts(text)
    kinds: list[Kind] = []
    line = _Line()
    for token in _tokens(text):
        if token.end[0] > len(starts):
            break
        end = starts[token.end[0] - 1] + token.end[1]
        kinds += [line.kind_of(token)] * (min(end, len(text)) - len(kinds))
    return kinds


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.split("\n"):  # As the tokenizer does: a form feed ends no line.
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def kinds_of_pieces(text: str, start: int, pieces: Sequence[str]) -> list[Kind]:
    """The kind of each of the consecutive pieces of `text` from `start` on: that of its first visible character.

    A piece of nothing but blanks has the kind of its first character.
    """
    kinds = kinds_of(text)
    ends = [start]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    shown = (next((at for at in range(begin, end) if not text[at].isspace()), begin) for begin, end in pairwise(ends))
    return [kinds[at] if at < len(kinds) else Kind.SYNTAX for at in shown]
