"""How much of an accepted text is still there after a while."""

import asyncio
from collections.abc import Callable
from difflib import SequenceMatcher

from completion_lsp.documents import Document, Edit

AFTER_S = (30, 90, 180, 360)
"""The times that the contract names, in seconds since the acceptance."""

Report = Callable[[int, float], None]
"""Takes one of these times and the share that is still there, 0 to 1."""

_MOST_COMPARED = 4_000_000
"""Product of the lengths of two texts that are compared, which takes a second at most."""


class AcceptedText:
    """The place of an accepted text in its document. Pure."""

    def __init__(self, request: int, start: int, text: str) -> None:
        """Begin with the text just accepted of a request, at `start`, as it is in the document."""
        self._request = request
        self._accepted = text
        self._start = start
        self._end = start + len(text)

    def extend(self, request: int, start: int, text: str) -> bool:
        """Take the next part of the same answer, if it continues this one; return whether it does."""
        if (request, start) != (self._request, self._end):
            return False
        self._accepted += text
        self._end += len(text)
        return True

    def apply(self, edit: Edit) -> None:
        """Move with an edit. What is put in at an edge is not part of the text."""
        grown = len(edit.text) - (edit.end - edit.start)
        if edit.end <= self._start:
            self._start, self._end = self._start + grown, self._end + grown
        elif edit.start < self._end:
            # What replaces an edge may be a changed form of the text, so it counts as part of it.
            self._start, self._end = min(self._start, edit.start), max(self._end, edit.end) + grown

    def share(self, document: str) -> float | None:
        """Return how much of it is in the document still, 0 to 1: its longest blocks that are there in order.

        None if so much text has come in its place that a comparison would take too long.
        """
        now = document[self._start : self._end]
        if now == self._accepted:
            return 1.0
        if len(self._accepted) * len(now) > _MOST_COMPARED:
            return None
        blocks = SequenceMatcher(None, self._accepted, now, autojunk=False).get_matching_blocks()
        return sum(block.size for block in blocks) / len(self._accepted)


class Survival:
    """Watches the accepted texts of the open documents. Use it in one event loop."""

    def __init__(self) -> None:
        """Begin without one."""
        self._watched: dict[str, list[AcceptedText]] = {}
        self._timers: dict[str, list[asyncio.TimerHandle]] = {}

    def watch(self, request: int, document: Document, start: int, end: int, report: Report) -> None:
        """Report on a text that was just accepted after each of the times, unless the document is closed by then.

        A further part of a request's text counts as part of the first one.
        """
        text, watched = document.source[start:end], self._watched.setdefault(document.uri, [])
        if any(each.extend(request, start, text) for each in watched):
            return
        accepted = AcceptedText(request, start, text)
        watched.append(accepted)
        loop = asyncio.get_running_loop()
        timers = self._timers.setdefault(document.uri, [])
        timers += [loop.call_later(each, self._measure, document, accepted, each, report) for each in AFTER_S]

    def apply(self, uri: str, edit: Edit) -> None:
        """Take an edit of a document."""
        for each in self._watched.get(uri, ()):
            each.apply(edit)

    def close(self, uri: str) -> None:
        """Forget a document."""
        self._watched.pop(uri, None)
        for timer in self._timers.pop(uri, ()):
            timer.cancel()

    def _measure(self, document: Document, accepted: AcceptedText, after_s: int, report: Report) -> None:
        if (share := accepted.share(document.source)) is not None:
            report(after_s, share)
        if after_s == AFTER_S[-1]:
            self._watched[document.uri].remove(accepted)
            now = asyncio.get_running_loop().time()
            self._timers[document.uri] = [each for each in self._timers[document.uri] if each.when() > now]
