"""Decides which requests of one caller are alike, and which one supersedes which. Pure.

A plugin asks without a session, so what it means shows in the texts alone. Of a newcomer and a recent request of its
caller:

- equal, while the other is live: asked at once on purpose. Both live, and one generation answers both.
- the other's text and its whole answer, within moments after that: asked in advance, behind what the user sees. It
  waits behind all typed requests, and supersedes none of them.
- the same document: the user has typed on or moved. It supersedes the other.
- another document: perhaps another user's, if callers have no names. Both live.

A user whose name is known has one lane, as over gRPC, whatever the document.
"""

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Protocol

from completion_server.core.outcome import Outcome
from completion_server.core.request import Trigger
from completion_server.http.dialect import Asked

_MAX_CALLERS = 4096
_MAX_REQUESTS = 8
"""Remembered requests of one caller."""
_IN_ADVANCE_S = 0.15
"""A plugin asks at once for what follows an answer; a user needs longer to accept it."""
_ANCHOR = 256
"""Characters on each side of the cursor by which a document is known again."""
_MIN_ANCHOR = 8
"""Shorter text may stand in any document."""
_NEAR = 8192
"""Characters on each side of the cursor in which they are looked for."""


class Live(Protocol):
    """A request that may be live, see `serving.completion.Completion`."""

    @property
    def outcome(self) -> Outcome | None:
        """How it has ended; None while it lives."""
        ...

    def cancel(self, outcome: Outcome, /) -> None:
        """End it, if it has not ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Anchors:
    """The text around the cursor, without the cursor's line, which changes with each key."""

    uri: str
    start: str
    before: str
    after: str

    @classmethod
    def of(cls, asked: Asked) -> "_Anchors":
        begin = asked.prefix.rfind("\n") + 1
        after = asked.suffix.find("\n") + 1
        return cls(
            asked.document_uri,
            asked.prefix[:_ANCHOR],
            asked.prefix[max(0, begin - _ANCHOR) : begin],
            asked.suffix[after : after + _ANCHOR] if after else "",
        )

    def is_in(self, asked: Asked) -> bool:
        """Return whether a later request seems to be about the same document."""
        if self.uri or asked.document_uri:
            return self.uri == asked.document_uri
        known = [each for each in (self.before, self.after) if len(each.strip()) >= _MIN_ANCHOR]
        if not known:  # a line or two, perhaps not even that
            return asked.prefix.startswith(self.start) or self.start.startswith(asked.prefix)
        near = asked.prefix[-_NEAR:] + asked.suffix[:_NEAR]
        return any(each in near for each in known)


@dataclass(slots=True, eq=False)
class Recent:
    """A request that came in."""

    lane: str
    """`Request.lane`."""
    document: str
    """The lane of the first of those that are alike."""
    trigger: Trigger
    anchors: _Anchors
    number: int
    asked: Asked | None
    """None once it has ended."""
    live: Live | None = None
    """Set once it is accepted."""
    text: str = ""
    tail: str = ""
    """The end of its prefix and answer."""
    ended_at: float = 0.0

    def end(self, text: str, now: float) -> None:
        """Note the text that was sent, and forget the rest."""
        if self.asked is not None:
            self.tail = (self.asked.prefix[-_ANCHOR:] + text)[-2 * _ANCHOR :]
            self.text, self.ended_at, self.asked, self.live = text, now, None, None

    @property
    def is_live(self) -> bool:
        """Whether it was accepted and has not ended."""
        return self.live is not None and self.live.outcome is None


class RecentRequests:
    """The last requests of each caller."""

    def __init__(self) -> None:
        """Begin with none."""
        self._callers: OrderedDict[str, deque[Recent]] = OrderedDict()
        self._documents = itertools.count(1)

    def place(self, owner: str, asked: Asked, number: int, now: float, *, has_name: bool) -> Recent:
        """Return a new request of a caller with its place; `has_name` tells that the caller is one user."""
        lane, document, trigger = self._place(owner, asked, number, now, has_name=has_name)
        return Recent(lane, document, trigger, _Anchors.of(asked), number, asked)

    def add(self, owner: str, recent: Recent, live: Live) -> list[Live]:
        """Note that a request was accepted; return the live ones that it ends besides that of its own lane."""
        requests = self._callers.setdefault(owner, deque(maxlen=_MAX_REQUESTS))
        self._callers.move_to_end(owner)
        if len(self._callers) > _MAX_CALLERS:
            self._callers.popitem(last=False)
        ended = [
            each.live
            for each in requests
            if each.is_live and each.live and each.document == recent.document and each.lane != recent.lane
        ]
        recent.live = live
        requests.append(recent)
        is_alike = recent.lane != recent.document
        return [] if is_alike or recent.trigger is Trigger.PREFETCH else ended

    def text_of(self, owner: str, number: int) -> str | None:
        """Return the text of an answer, None if it is not remembered."""
        return next((each.text for each in self._callers.get(owner, ()) if each.number == number), None)

    def _place(self, owner: str, asked: Asked, number: int, now: float, *, has_name: bool) -> tuple[str, str, Trigger]:
        """Return the lane, the document and the trigger of a request."""
        latest_first = list(reversed(self._callers.get(owner, ())))
        for each in latest_first:
            if each.is_live and each.asked == asked:
                return f"{each.document}+{number}", each.document, each.trigger
        for each in latest_first:
            if _is_in_advance(each, asked, now):
                return each.document, each.document, Trigger.PREFETCH
        if has_name:
            return "", "", Trigger.AUTOMATIC
        known = (each.document for each in latest_first if each.document and each.anchors.is_in(asked))
        document = next(known, None) or f"document {next(self._documents)}"
        return document, document, Trigger.AUTOMATIC


def _is_in_advance(older: Recent, asked: Asked, now: float) -> bool:
    is_just_answered = bool(older.text) and older.asked is None and now - older.ended_at <= _IN_ADVANCE_S
    return is_just_answered and asked.prefix.endswith(older.tail)
