"""Decides which requests of one caller are duplicates, and which one supersedes which. Pure.

A plugin asks without a session, so what it means shows in the texts alone. Of a newcomer and a recent request of its
caller:

- equal, while the other is live: asked at once on purpose. Both live, and one generation answers both.
- the other's text and its whole answer, within moments after that: asked in advance, behind what the user sees. It
  waits behind all typed requests, and supersedes none of them.
- the same document: the user has typed on or moved. It supersedes the other.
- another document: perhaps another user's, if callers have no names. Both live.

A user whose name is known has one lane, as over gRPC, whatever the document.
"""

from collections import OrderedDict, deque
from dataclasses import astuple, dataclass, field
from functools import partial
from sys import getsizeof
from typing import Protocol

from completion_server.api.http.dialect import Asked
from completion_server.core.outcome import Outcome
from completion_server.core.request import Trigger, next_stream_number
from completion_server.requests.feedback import KEPT_S

_MAX_BYTES = 64 * 1024 * 1024
"""Of all remembered documents."""
_OBJECT_BYTES = 512
"""Of an entry without its texts."""
_MAX_DOCUMENTS = 32
"""Remembered documents of one caller."""
_MAX_REQUESTS = 8
"""Remembered requests of one document."""
_IN_ADVANCE_S = 0.4
"""A plugin asks soon for what follows an answer, llama.vim by a timer of 100 ms and then curl; a user needs longer to
accept it."""
_ANCHOR = 256
"""Characters on each side of the cursor by which a document is known again."""
_MIN_ANCHOR = 8
"""Shorter text may stand in any document."""
_NEAR = 8192
"""Characters on each side of the cursor in which that text is looked for."""


class Live(Protocol):
    """A request that may be live, see `requests.completion.Completion`."""

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
    suffix: str
    """The beginning of all that is right of the cursor."""

    @classmethod
    def of(cls, asked: Asked) -> "_Anchors":
        """Return those of a request."""
        begin = asked.prefix.rfind("\n") + 1
        after = asked.suffix.find("\n") + 1
        return cls(
            asked.document_uri,
            asked.prefix[:_ANCHOR],
            asked.prefix[max(0, begin - _ANCHOR) : begin],
            asked.suffix[after : after + _ANCHOR] if after else "",
            asked.suffix[:_ANCHOR],
        )

    def is_in(self, asked: Asked) -> bool:
        """Return whether a later request seems to be about the same document."""
        if self.uri or asked.document_uri:
            return self.uri == asked.document_uri
        known = [each for each in (self.before, self.after) if len(each.strip()) >= _MIN_ANCHOR]
        if not known:  # a line or two, perhaps not even that
            start = asked.prefix[:_ANCHOR]
            if not start.strip() and not self.start.strip():
                return asked.suffix[:_ANCHOR] == self.suffix
            shorter, longer = sorted((start, self.start), key=len)
            return bool(shorter.strip()) and longer.startswith(shorter)
        near = asked.prefix[-_NEAR:] + asked.suffix[:_NEAR]
        return any(each in near for each in known)


@dataclass(slots=True, eq=False)
class Recent:
    """A request that came in."""

    number: int
    owner: str
    """`Caller.owner` of its caller, without the document."""
    user: str
    """The client's own id of its user, as in `Asked`."""
    document: int
    """Number of its document, unique in this process."""
    common_lane: str
    """The lane of its document, or its user's, which is ""."""
    trigger: Trigger
    is_duplicate: bool
    """Whether an equal request was live when it came. It has a lane of its own then."""
    asked: Asked | None
    """None once it has ended."""
    live: Live | None = None
    """Set once it is accepted."""
    text: str = ""
    tails: tuple[str, ...] = ()
    """The end of its prefix and answer, and of both with what was right of the cursor in its line: llama.vim appends
    the answer to the whole line."""
    ended_at: float = 0.0

    @property
    def lane(self) -> str:
        """`Request.lane`."""
        return f"{self.common_lane}+{self.number}" if self.is_duplicate else self.common_lane

    @property
    def is_live(self) -> bool:
        """Whether it was accepted and has not ended."""
        return self.live is not None and self.live.outcome is None

    def end(self, text: str, now: float) -> None:
        """Note the text that was sent, and forget the rest."""
        if self.asked is not None:
            before, right = self.asked.prefix[-_ANCHOR:], self.asked.suffix.partition("\n")[0][:_ANCHOR]
            found = (before + text, before + text + right, before + right + text)
            self.tails = tuple(each[-2 * _ANCHOR :] for each in dict.fromkeys(found))
            self.text, self.ended_at, self.asked, self.live = text, now, None, None

    def is_followed_by(self, asked: Asked, now: float) -> bool:
        """Return whether a later request asks for what would follow its answer, too soon for a user."""
        is_just_answered = bool(self.text) and now - self.ended_at <= _IN_ADVANCE_S
        return is_just_answered and asked.prefix.endswith(self.tails)


@dataclass(slots=True, eq=False)
class _Document:
    """What is known of a document."""

    owner: str
    number: int
    anchors: _Anchors
    """Those of the last request."""
    used_at: float = 0.0
    requests: deque[Recent] = field(default_factory=deque)
    counted_bytes: int = 0

    def num_bytes(self) -> int:
        """Return what it takes. The texts of live requests are not counted, because the requests have them anyway."""
        texts: list[str] = [*astuple(self.anchors)]
        texts += [text for each in self.requests for text in (each.text, *each.tails)]
        return sum(map(getsizeof, texts)) + _OBJECT_BYTES * (1 + len(self.requests))


class RecentRequests:
    """The last documents of each caller, and the last requests of each of them, for `KEPT_S`.

    Above a number of bytes the document whose last use is the longest ago is forgotten first.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        """Begin with none."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._documents: OrderedDict[int, _Document] = OrderedDict()
        """Those of all callers, by number, in the order of their last use."""
        self._callers: dict[str, dict[int, _Document]] = {}
        """Those of each caller, in the order of their last requests."""
        self._requests: dict[int, Recent] = {}

    def __len__(self) -> int:
        """Return the number of remembered requests."""
        return len(self._requests)

    def place(self, owner: str, asked: Asked, number: int, now: float, *, has_name: bool) -> Recent:
        """Return a new request of a caller with its place; `has_name` tells that the caller is one user."""
        documents = self._callers.get(owner, {})
        older = [each for document in reversed(documents.values()) for each in reversed(document.requests)]
        make = partial(Recent, number, owner, asked.user, asked=asked)
        same = next((each for each in older if each.is_live and each.asked == asked), None)
        if same is not None:
            return make(same.document, same.common_lane, same.trigger, is_duplicate=True)
        ahead = next((each for each in older if each.is_followed_by(asked, now)), None)
        if ahead is not None:
            return make(ahead.document, ahead.common_lane, Trigger.PREFETCH, is_duplicate=False)
        found = (name for name, document in reversed(documents.items()) if document.anchors.is_in(asked))
        document = next(found, None) or next_stream_number()
        lane = "" if has_name else f"document {document}"
        return make(document, lane, Trigger.AUTOMATIC, is_duplicate=False)

    def add(self, recent: Recent, live: Live, now: float) -> list[Live]:
        """Note that a request was accepted; return the live ones that it ends besides that of its own lane."""
        assert recent.asked is not None
        documents = self._callers.setdefault(recent.owner, {})
        ended = [
            each.live
            for document in documents.values()
            for each in document.requests
            if each.is_duplicate and each.is_live and each.live and each.common_lane == recent.common_lane
        ]
        anchors = _Anchors.of(recent.asked)
        document = documents.pop(recent.document, None) or _Document(recent.owner, recent.document, anchors)
        document.anchors, recent.live = anchors, live
        if len(document.requests) == _MAX_REQUESTS:
            del self._requests[document.requests.popleft().number]
        document.requests.append(recent)
        self._requests[recent.number] = recent
        documents[document.number] = self._documents[document.number] = document
        self._note_use(document, now)
        if len(documents) > _MAX_DOCUMENTS:
            self._forget(next(iter(documents.values())))
        self._trim(now)
        return [] if recent.is_duplicate or recent.trigger is Trigger.PREFETCH else ended

    def end(self, recent: Recent, text: str, now: float) -> None:
        """Note the text that was sent for a request, and forget the rest."""
        recent.end(text, now)
        if recent.number in self._requests:
            self._note_use(self._documents[recent.document], now)

    def find(self, number: int) -> Recent | None:
        """Return a request by its number, None if it is not remembered."""
        return self._requests.get(number)

    def _note_use(self, document: _Document, now: float) -> None:
        """Note when a document was used, and what it takes now."""
        num_bytes = document.num_bytes()
        self._num_bytes += num_bytes - document.counted_bytes
        document.counted_bytes, document.used_at = num_bytes, now
        self._documents.move_to_end(document.number)

    def _trim(self, now: float) -> None:
        """Forget old documents, and those that there is no room for."""
        while self._documents:
            oldest = next(iter(self._documents.values()))
            if self._num_bytes <= self._max_bytes and now - oldest.used_at < KEPT_S:
                return
            self._forget(oldest)

    def _forget(self, document: _Document) -> None:
        self._num_bytes -= document.counted_bytes
        for each in document.requests:
            del self._requests[each.number]
        del self._documents[document.number]
        documents = self._callers[document.owner]
        del documents[document.number]
        if not documents:
            del self._callers[document.owner]
