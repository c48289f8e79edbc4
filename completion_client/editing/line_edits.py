"""Lines of a text, what changed of them, and edits that replace whole lines. Pure.

Lines end with "\\n" alone: `str.splitlines` knows more line ends than editors do.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LineEdit:
    """The replacement of whole lines."""

    first: int
    """The first line that is replaced, counted from 0."""
    num_lines: int
    """How many are; 0 inserts before `first`."""
    text: str
    """The new lines, each with its end but perhaps the document's last; "" deletes."""


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends. What follows the last end is a line, unless it is empty."""
    *whole, last = text.split("\n")
    return [*(f"{each}\n" for each in whole), *([last] if last else [])]


def changed_lines(old: Sequence[str], new: Sequence[str]) -> tuple[int, int, int]:
    """Return the first line that differs, and how many lines of the old and of the new text do."""
    most = min(len(old), len(new))
    first = next((at for at in range(most) if old[at] != new[at]), most)
    num_after = next((at for at in range(most - first) if old[-1 - at] != new[-1 - at]), most - first)
    return first, len(old) - first - num_after, len(new) - first - num_after


def fitted(lines: Sequence[str], edit: LineEdit) -> LineEdit | None:
    """Return the least edit that does the same to a document; None if it changes nothing or is not for this document.

    An edit may count the empty line behind the document's last line end as a line.
    """
    first, end = edit.first, min(edit.first + edit.num_lines, len(lines))
    if not 0 <= first <= end:
        return None
    new = lines_of(edit.text)
    if new and end < len(lines) and not new[-1].endswith("\n"):
        new[-1] += "\n"
    if new and 0 < first == len(lines) and not lines[-1].endswith("\n"):
        first, new = first - 1, [f"{lines[-1]}\n", *new]
    offset, num_old, num_new = changed_lines(lines[first:end], new)
    if not num_old and not num_new:
        return None
    return LineEdit(first + offset, num_old, "".join(new[offset : offset + num_new]))
