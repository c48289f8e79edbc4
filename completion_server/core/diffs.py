"""Unified diffs: the hunks of one file, without the two lines of file names. Pure."""

import re
from dataclasses import dataclass

_HEADER = re.compile(r"@@ -\d+(,\d+)? \+\d+(,\d+)? @@")
_SIGNS = frozenset({"", " ", "-", "+", "\\"})
"""Begin the lines of a hunk; a backslash the one that says that a file does not end with a line break."""
MAX_LINES = 4000
"""Of one diff."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One place of a change: its lines before and after, with the unchanged lines around it."""

    old: tuple[str, ...]
    new: tuple[str, ...]


def plain_breaks(text: str) -> str:
    """Return a text with "\\n" for every line break."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_hunks(diff: str) -> None:
    """Check that every line of a diff belongs to a hunk.

    Raises:
        ValueError: a line is none of a hunk, and the message names its number; or there are too many.

    """
    lines = _lines_of(diff)
    if len(lines) > MAX_LINES:
        msg = f"there may be {MAX_LINES} lines, and are {len(lines)}"
        raise ValueError(msg)
    for number, line in enumerate(lines, 1):
        if not (line[:1] in _SIGNS and number > 1) and not (line.startswith("@@") and _HEADER.match(line)):
            wanted = '"@@ -1,2 +1,2 @@"' if number == 1 else 'one that begins with " ", "-", "+" or "@@"'
            msg = f"line {number} must be {wanted}"
            raise ValueError(msg)


def parse_hunks(diff: str) -> tuple[Hunk, ...]:
    """Return the hunks of a diff in which every line belongs to one, see `check_hunks`."""
    sides: list[tuple[list[str], list[str]]] = []
    for line in _lines_of(diff):
        sign, text = line[:1], line[1:]
        if sign == "@":
            sides.append(([], []))
            continue
        old, new = sides[-1]
        if sign in {"", " ", "-"}:
            old.append(text)
        if sign in {"", " ", "+"}:
            new.append(text)
    return tuple(Hunk(tuple(old), tuple(new)) for old, new in sides)


def _lines_of(diff: str) -> list[str]:
    return plain_breaks(diff).removesuffix("\n").split("\n")
