"""Classifies characters of Python by kind, with Pygments: the kinds of the acceptance table.

A blank counts with the token behind it, so that a token of the model with a blank in front has the kind of its word.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import accumulate, pairwise
from typing import Any

from pygments.lexers import PythonLexer  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Operator, Punctuation, String, Text  # type: ignore[import-untyped]


class Kind(Enum):
    """The kinds, which are the rows of the table."""

    SYNTAX = "closing brackets and syntax"
    IDIOMS = "common idioms"
    IDENTIFIERS = "identifiers"
    COMMENTS = "comments and docstrings"
    LOGIC = "logic"


_KINDS: tuple[tuple[Kind, tuple[Any, ...]], ...] = (
    (Kind.COMMENTS, (Comment, String.Doc)),
    (Kind.SYNTAX, (Punctuation, Text)),
    (Kind.IDIOMS, (Keyword, Operator.Word, Name.Builtin, Name.Exception, Name.Function.Magic, Name.Namespace)),
    (Kind.IDENTIFIERS, (Name,)),
)
"""The first kind that fits a token; others (operators, numbers, other strings, errors) are logic."""
_SYNTAX = frozenset({".", "->"})
_LEXER = PythonLexer(stripnl=False, ensurenl=False)


def kinds_of(text: str) -> list[Kind]:
    """The kind of every character of `text`."""
    kinds: list[Kind] = []
    for _, token, value in _LEXER.get_tokens_unprocessed(text):
        if value in _SYNTAX:
            kind = Kind.SYNTAX
        else:
            kind = next((kind for kind, types in _KINDS if any(token in one for one in types)), Kind.LOGIC)
        kinds += [kind] * len(value)
    for at in range(len(text) - 2, -1, -1):
        if text[at].isspace() and text[at] != "\n":
            kinds[at] = kinds[at + 1]
    return kinds


def kinds_of_pieces(text: str, start: int, pieces: Sequence[str]) -> list[Kind]:
    """The kind of each of the consecutive pieces of `text` from `start` on: that of its first visible character.

    A piece of nothing but blanks has the kind of its first character.
    """
    kinds = kinds_of(text)
    ends = accumulate(map(len, pieces), initial=start)
    shown = (next((at for at in range(begin, end) if not text[at].isspace()), begin) for begin, end in pairwise(ends))
    return [kinds[at] if at < len(kinds) else Kind.SYNTAX for at in shown]
