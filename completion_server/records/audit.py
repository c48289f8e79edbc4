"""The audit log: who did what, when, from where and with which outcome. It holds no text."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
from completion_server.records.chain import RECOVERED, ChainState, Sealer
from completion_server.records.files import RotatingFile
from completion_server.records.writer import WriteStatus

MAX_REFUSALS_PER_S = 20
"""Refused authentications that get a line of their own; the others of the same second share one."""
_MAX_PEERS = 20
LOST = "lost"
REFUSED = "authentication_refused"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """What happened once."""

    at_s: float
    """Unix time in seconds."""
    kind: str
    actor: Actor | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the values of its line."""
        at = datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {"time": at, "kind": self.kind}
        actor = self.actor
        if actor is not None:
            found |= {"user": actor.user, "tenant": actor.tenant, "verified": actor.is_verified}
            found |= {"credential": actor.credential, "peer": actor.peer}
        return found | self.details


def record_of(event: Event, at_s: float) -> AuditRecord | None:
    """Return the record of an event that happened at a Unix time; None for an event that is not audited."""
    found: tuple[str, Actor, dict[str, Any]] | None = None
    match event:
        case RequestEnded(request=request, end=end):
            outcome, reason = end.outcome.reason.value, end.outcome.shed_reason
            details = {"request": request.id, "outcome": outcome, "bytes": _num_bytes(request)}
            if reason is not None:
                details["shed_reason"] = reason.value
            found = "complete", _actor_of(request.caller), details
        case FeedbackReported(feedback=feedback, caller=Caller() as caller):
            found = "feedback", _actor_of(caller), {"outcome": feedback.kind}
        case SessionOpened(actor=actor):
            found = "session_open", actor, {}
        case SessionClosed(actor=actor, seconds=seconds):
            found = "session_close", actor, {"seconds": round(seconds, 3)}
        case AdminChanged(actor=actor, setting=setting, old=old, new=new):
            found = "admin_change", actor, {"setting": setting, "old": old, "new": new}
        case AuthenticationRefused(actor=actor, error=error):
            found = REFUSED, actor, {"outcome": error.code.name.lower()}
    return None if found is None else AuditRecord(at_s, *found)


class RefusalFlood:
    """Limits the lines of refused authentications, and counts the others of a second. Safe in any thread."""

    def __init__(self, max_per_s: int = MAX_REFUSALS_PER_S) -> None:
        """Allow `max_per_s` lines in a second."""
        self._max_per_s = max_per_s
        self._lock = threading.Lock()
        self._second = 0
        self._num_passed = 0
        self._peers: Counter[str] = Counter()
        self._num_others = 0

    def passes(self, record: AuditRecord) -> Iterator[AuditRecord]:
        """Yield the records to write now: the count of an earlier second, and this one unless it is only counted."""
        yield from self.take(record.at_s)
        with self._lock:
            self._num_passed += 1
            if self._num_passed > self._max_per_s:
                self._count(record.actor.peer if record.actor is not None else "")
                return
        yield record

    def take(self, now_s: float) -> Iterator[AuditRecord]:
        """Yield the count of an earlier second, if there is one."""
        with self._lock:
            second = int(now_s)
            if second == self._second:
                return
            peers, num_others, since_s = dict(self._peers), self._num_others, self._second
            self._second, self._num_passed, self._num_others = second, 0, 0
            self._peers.clear()
        if peers or num_others:
            count = sum(peers.values()) + num_others
            yield AuditRecord(since_s, REFUSED, details={"count": count, "peers": peers, "other_peers": num_others})

    def _count(self, peer: str) -> None:
        if peer in self._peers or len(self._peers) < _MAX_PEERS:
            self._peers[peer] += 1
        else:
            self._num_others += 1


class AuditSink:
    """Writes the audit log. Of records that can't be written, it writes the number by kind when it can again."""

    def __init__(
        self,
        file: RotatingFile,
        sealer: Sealer,
        state: ChainState,
        flood: RefusalFlood,
        *,
        cut: str = "",
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """Go on after `state`. `cut` is the line that a crash cut, if any."""
        self.status = WriteStatus("audit", str(file.path))
        self._file = file
        self._sealer = sealer
        self._state = state
        self._flood = flood
        self._unix_s = unix_s
        self._lock = threading.Lock()
        self._lost: Counter[str] = Counter()
        self._first = [AuditRecord(unix_s(), RECOVERED, details={"cut": cut})] if cut else []
        """Records that must be written before any other."""

    def write(self, records: Sequence[AuditRecord]) -> None:
        """Write how many records could not be written before, then these records."""
        records = [*self._flood.take(self._unix_s()), *records]
        if self._write_first() and (not records or self._append(records)):
            return
        for each in records:
            self.count_only(each)

    def count_only(self, record: AuditRecord) -> None:
        """Count a record that is not written."""
        with self._lock:
            num = record.details.get("count", 1)
            self._lost[record.kind] += num
            self.status.num_lost += num

    def close(self) -> None:
        """Flush and close the file.

        Raises:
            OSError: it can't be flushed.

        """
        self._file.close()

    def _write_first(self) -> bool:
        if self._first:
            if not self._append(self._first):
                return False
            self._first = []
        with self._lock:
            lost, self._lost = self._lost, Counter()
        if not lost or self._append([AuditRecord(self._unix_s(), LOST, details={"counts": dict(lost)})]):
            return True
        with self._lock:
            self._lost.update(lost)
        return False

    def _append(self, records: Sequence[AuditRecord]) -> bool:
        lines: list[bytes] = []
        state = self._state
        for each in records:
            line, state = self._sealer.seal(state, each.as_json())
            lines.append(line)
        try:
            self._file.append(b"".join(lines))
        except OSError as error:
            self.status.failed(error)
            return False
        self._state = state
        self.status.worked()
        return True


def _actor_of(caller: Caller) -> Actor:
    return Actor(caller.user, caller.tenant, caller.credential, caller.peer, caller.is_verified)


def _num_bytes(request: Request) -> int:
    """Return the bytes of a request's text."""
    return sum(map(_size, (request.prefix, request.suffix, *(snippet.text for snippet in request.snippets))))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
