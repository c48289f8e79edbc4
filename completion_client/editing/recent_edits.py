"""What the user changed last, as hunks of unified diffs that a request for the next edit sends along. Pure.

Changes that are close in place and time are one hunk. Only the newest hunk can grow; the others are history and keep
the line numbers that they had.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from completion_client.editing.line_edits import changed_lines, lines_of
from completion_client.editing.settings import RecentEditSettings


@dataclass(frozen=True, slots=True)
class RecentEdit:
    """A change that the user made, as in the contract."""

    uri: str
    diff: str
    """A hunk of a unified diff."""


@dataclass(frozen=True, slots=True)
class _Hunk:
    """Lines of a document's present text that took the place of others."""

    uri: str
    start: int
    old: tuple[str, ...]
    num_new: int
    changed_ms: float

    def gap_to(self, first: int, num_lines: int) -> int:
        """Return how many lines are between this hunk and other lines."""
        return max(first - self.start - self.num_new, self.start - first - num_lines, 0)

    def joined(self, before: Sequence[str], other: "_Hunk") -> "_Hunk":
        """Return this hunk and a later one of the document as one; `before` was the text between the two."""
        start, own_end = min(self.start, other.start), self.start + self.num_new
        end = max(own_end, other.start + len(other.old))
        old = (*before[start : self.start], *self.old, *before[own_end:end])
        num_new = end - start + other.num_new - len(other.old)
        return replace(other, start=start, old=old, num_new=num_new)

    def diff_in(self, lines: Sequence[str], num_context: int) -> str:
        """Return the hunk as a diff, "" if it changes nothing. `lines` are those of its document."""
        new = lines[self.start : self.start + self.num_new]
        offset, num_old, num_new = changed_lines(self.old, new)
        if not num_old and not num_new:
            return ""
        start = self.start + offset
        before, after = lines[max(0, start - num_context) : start], lines[start + num_new :][:num_context]
        body = (
            *(f" {each}" for each in before),
            *(f"-{each}" for each in self.old[offset : offset + num_old]),
            *(f"+{each}" for each in new[offset : offset + num_new]),
            *(f" {each}" for each in after),
        )
        num_around = len(before) + len(after)
        spans = (_span(start - len(before), num_around + num) for num in (num_old, num_new))
        head = "@@ -{} +{} @@\n".format(*spans)
        return head + "".join(each if each.endswith("\n") else f"{each}\n" for each in body)


class RecentEdits:
    """The user's recent edits; the oldest one is forgotten first."""

    def __init__(self, settings: RecentEditSettings | None = None) -> None:
        """Begin without a document."""
        self.settings = settings or RecentEditSettings()
        self._lines: dict[str, list[str]] = {}
        self._closed: deque[RecentEdit] = deque(maxlen=self.settings.num_edits)
        self._hunk: _Hunk | None = None
        """The newest one, which may still grow."""

    def update(self, uri: str, text: str, at_ms: float) -> None:
        """Take the text of a document that was opened or changed. Lines end with "\\n"."""
        lines, before = lines_of(text), self._lines.get(uri)
        if before is None:
            self._lines[uri] = lines
            return
        first, num_old, num_new = changed_lines(before, lines)
        if not num_old and not num_new:
            return
        made = _Hunk(uri, first, tuple(before[first : first + num_old]), num_new, at_ms)
        hunk = self._hunk
        if hunk is not None and self._is_close(hunk, made):
            made = hunk.joined(before, made)
        else:
            self._closed.extend(self._newest())
        self._lines[uri], self._hunk = lines, made

    def forget(self, uri: str) -> None:
        """Forget a document that was closed or may not be sent, and its edits."""
        self._lines.pop(uri, None)
        self._closed = deque((each for each in self._closed if each.uri != uri), self.settings.num_edits)
        if self._hunk is not None and self._hunk.uri == uri:
            self._hunk = None

    def choose(self) -> tuple[RecentEdit, ...]:
        """Return the newest edits that fit into the budget, the oldest first."""
        found: list[RecentEdit] = []
        left_bytes = self.settings.budget_bytes
        for each in [*self._closed, *self._newest()][: -self.settings.num_edits - 1 : -1]:
            size = _num_bytes(each.diff)
            if size <= left_bytes:
                found.append(each)
                left_bytes -= size
        return tuple(reversed(found))

    def _is_close(self, hunk: _Hunk, made: _Hunk) -> bool:
        if hunk.uri != made.uri or made.changed_ms - hunk.changed_ms > self.settings.merge_ms:
            return False
        return hunk.gap_to(made.start, len(made.old)) <= self.settings.merge_lines

    def _newest(self) -> Iterator[RecentEdit]:
        """Yield the newest hunk, if it changes something and is not too large ever to be sent."""
        if self._hunk is None:
            return
        diff = self._hunk.diff_in(self._lines[self._hunk.uri], self.settings.context_lines)
        if diff and _num_bytes(diff) <= self.settings.budget_bytes:
            yield RecentEdit(self._hunk.uri, diff)


def _span(start: int, num_lines: int) -> str:
    """Return lines as a hunk's head names them: counted from 1; those of nothing begin at the line before."""
    return f"{start + 1 if num_lines else start},{num_lines}"


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
