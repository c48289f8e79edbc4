"""Unified diffs: the hunks of one file, without the two lines of file names. Pure."""

import re
from dataclasses import dataclass

_HEADER = re.compile(r"@@ -\d+(,\d+)? \+\d+(,\d+)? @@")
_NO_NEWLINE = "\\"
"""Begins the line that says that a file does not end with a line break."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One place of a change: its lines before and after, with the unchanged lines around it."""

    old: tuple[str, ...]
    new: tuple[str, ...]


def plain_breaks(text: str) -> str:
    """Return a text with "\\n" for every line break."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_hunks(diff: str) -> tuple[Hunk, ...]:
    """Return the hunks of a diff.

    Raises:
        ValueError: a line is none of a hunk; the message names its number.

    """
    sides: list[tuple[list[str], list[str]]] = []
    for number, line in enumerate(plain_breaks(diff).removesuffix("\n").split("\n"), 1):
        sign, text = line[:1], line[1:]
        if _HEADER.match(line):
            sides.append(([], []))
        elif not sides or sign not in {"", " ", "-", "+", _NO_NEWLINE}:
            wanted = '"@@ -1,2 +1,2 @@"' if not sides else 'one that begins with " ", "-", "+" or "@@"'
            msg = f"line {number} must be {wanted}"
            raise ValueError(msg)
        else:
            old, new = sides[-1]
            if sign in {"", " ", "-"}:
                old.append(text)
            if sign in {"", " ", "+"}:
                new.append(text)
    return tuple(Hunk(tuple(old), tuple(new)) for old, new in sides)
