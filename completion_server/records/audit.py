"""The audit log: who did what, when, from where and with which outcome. It holds no text."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from completion_server.core.events import (
    Actor,
    AdminChanged,
    AuthenticationRefused,
    Event,
    FeedbackReported,
    RequestEnded,
    SessionClosed,
    SessionOpened,
)
from completion_server.core.request import Caller, Request
from completion_server.records.chain import RECOVERED, Sealer
from completion_server.records.files import RotatingFile
from completion_server.records.recovery import recover
from completion_server.records.writer import Record, RecordWriter, time_of

MAX_REFUSALS_PER_S = 20
"""Refused authentications that get a line of their own; the others of the same second share one."""
_MAX_PEERS = 20
_OTHERS = ""
LOST = "lost"
REFUSED = "authentication_refused"


def record_of(event: Event, at_s: float) -> Record | None:
    """Return the record of an event that happened at a Unix time; None for an event that is not audited."""
    details: Record = {}
    match event:
        case RequestEnded(request=request, end=end):
            kind, actor = "complete", _actor_of(request.caller)
            details = {"request": request.id, "outcome": end.outcome.reason.value, "bytes": _num_bytes(request)}
            if end.outcome.shed_reason is not None:
                details["shed_reason"] = end.outcome.shed_reason.value
        case FeedbackReported(feedback=feedback, caller=Caller() as caller):
            kind, actor, details = "feedback", _actor_of(caller), {"outcome": feedback.kind}
        case SessionOpened(actor=actor):
            kind = "session_open"
        case SessionClosed(actor=actor, seconds=seconds):
            kind, details = "session_close", {"seconds": round(seconds, 3)}
        case AdminChanged(actor=actor, setting=setting, old=old, new=new):
            kind, details = "admin_change", {"setting": setting, "old": old, "new": new}
        case AuthenticationRefused(actor=actor, error=error):
            kind, details = REFUSED, {"outcome": error.code.name.lower()}
        case _:
            return None
    who = {"user": actor.user, "tenant": actor.tenant, "verified": actor.is_verified}
    return _record(kind, at_s, **who, credential=actor.credential, peer=actor.peer, **details)


class RefusalFlood:
    """Limits the lines of refused authentications, and counts the others of a second. Safe in any thread."""

    def __init__(self, max_per_s: int = MAX_REFUSALS_PER_S) -> None:
        """Allow `max_per_s` lines in a second."""
        self._max_per_s = max_per_s
        self._lock = threading.Lock()
        self._second = 0
        self._num_passed = 0
        self._peers: Counter[str] = Counter()

    def passes(self, peer: str) -> bool:
        """Return whether a refusal of this second has a line of its own; else count it."""
        with self._lock:
            self._num_passed += 1
            if self._num_passed <= self._max_per_s:
                return True
            self._peers[peer if peer in self._peers or len(self._peers) < _MAX_PEERS else _OTHERS] += 1
            return False

    def take(self, now_s: float) -> list[Record]:
        """Return the record that counts the refusals of an earlier second, if there is one."""
        with self._lock:
            if int(now_s) == self._second:
                return []
            peers, since_s = self._peers, self._second
            self._second, self._num_passed, self._peers = int(now_s), 0, Counter()
        if not peers:
            return []
        count, num_others = peers.total(), peers.pop(_OTHERS, 0)
        return [_record(REFUSED, since_s, count=count, peers=dict(peers), other_peers=num_others)]


class AuditWriter(RecordWriter):
    """Writes the audit log. Of records that can't be written, it writes the number by kind when it can again."""

    kind = "audit"

    def __init__(
        self,
        file: RotatingFile,
        sealer: Sealer,
        flood: RefusalFlood | None = None,
        *,
        unix_s: Callable[[], float] = time.time,
        **options: Any,  # noqa: ANN401 - see RecordWriter
    ) -> None:
        """Go on after the last line of the file. See `recover` for the errors."""
        super().__init__(file, **options)
        self._sealer = sealer
        self._flood = flood or RefusalFlood()
        self._unix_s = unix_s
        self._lost: Counter[str] = Counter()
        self.state, cut = recover(file.path, sealer)
        self._recovered = [_record(RECOVERED, unix_s(), cut=cut)] if cut else []
        """What must be written before any other record."""

    def handle(self, event: Event, now_s: float) -> None:
        """Put the record of an event into the queue, unless it is a refusal of many."""
        record = record_of(event, now_s)
        if record is None:
            return
        if isinstance(event, AuthenticationRefused):
            for each in self._flood.take(now_s):
                self.put_nowait(each)
            if not self._flood.passes(event.actor.peer):
                return
        self.put_nowait(record)

    def write(self, records: Sequence[Record]) -> None:
        """Write the count of refusals, too, if it is time."""
        super().write([*records, *self._flood.take(self._unix_s())])

    def _add_up(self, record: Record) -> int:
        if record["kind"] == RECOVERED:
            self._recovered = [record]
            return 0
        counts = record["counts"] if record["kind"] == LOST else {record["kind"]: record.get("count", 1)}
        self._lost.update(counts)
        return sum(counts.values())

    def _take_sums(self) -> Sequence[Record]:
        sums, self._recovered = self._recovered, []
        if self._lost:
            sums = [*sums, _record(LOST, self._unix_s(), counts=dict(self._lost))]
            self._lost.clear()
        return sums

    def _append(self, records: Sequence[Record]) -> None:
        lines: list[bytes] = []
        state = self.state
        for each in records:
            line, state = self._sealer.seal(state, each)
            lines.append(line)
        self._file.append(b"".join(lines))
        self.state = state


def _record(kind: str, at_s: float, **values: Any) -> Record:  # noqa: ANN401 - whatever JSON has
    return {"time": time_of(at_s), "kind": kind, **values}


def _actor_of(caller: Caller) -> Actor:
    return Actor(caller.user, caller.tenant, caller.credential, caller.peer, caller.is_verified)


def _num_bytes(request: Request) -> int:
    """Return the bytes of a request's text."""
    return sum(map(_size, (request.prefix, request.suffix, *(snippet.text for snippet in request.snippets))))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
