"""The audit log: who did what, when, from where and with which outcome. It holds no text."""

from typing import Any

from completion_server.core.events import (
    AdminChanged,
    AuthenticationRefused,
    Event,
    FeedbackReported,
    RequestEnded,
    SessionClosed,
    SessionOpened,
)
from completion_server.core.request import Caller, Request
from completion_server.ops.records.record_log import Put, Record, time_of

MAX_REFUSALS_PER_S = 20
"""Refused authentications that get a line of their own; the others of the same second share one."""
REFUSED = "authentication_refused"


def record_of(event: Event, at_s: float) -> Record | None:
    """Return the record of an event that happened at a Unix time; None for an event that is not audited."""
    details: Record = {}
    match event:
        case RequestEnded(request=request, end=end):
            kind, caller = "complete", request.caller
            details = {"request": request.id, "outcome": end.outcome.reason.value, "bytes": _num_bytes(request)}
            if end.outcome.shed_reason is not None:
                details["shed_reason"] = end.outcome.shed_reason.value
        case FeedbackReported(feedback=feedback, caller=Caller() as caller):
            kind, details = "feedback", {"outcome": feedback.kind}
        case SessionOpened(caller=caller):
            kind = "session_open"
        case SessionClosed(caller=caller, seconds=seconds):
            kind, details = "session_close", {"seconds": round(seconds, 3)}
        case AdminChanged(caller=caller, setting=setting, old=old, new=new):
            kind, details = "admin_change", {"setting": setting, "old": old, "new": new}
        case AuthenticationRefused(caller=caller, error=error):
            kind, details = REFUSED, {"outcome": error.code.name.lower()}
        case _:
            return None
    who = {"user": caller.user, "tenant": caller.tenant, "verified": caller.is_verified}
    credential = caller.credential.name if caller.credential else ""
    return _record(kind, at_s, **who, credential=credential, peer=caller.peer, **details)


class AuditRecords:
    """Makes the records of the audit log. A flood of refused authentications does not flood the log."""

    def __init__(self, put: Put) -> None:
        """Pass each record to `put`."""
        self._put = put
        self._second = 0
        self._num_refused = 0
        """Refused authentications of `_second`."""

    def handle(self, event: Event, now_s: float) -> None:
        """Put the record of an event that happened at a Unix time, unless it is a refusal of many."""
        record = record_of(event, now_s)
        if record is None:
            return
        if int(now_s) != self._second:
            self.flush()
            self._second, self._num_refused = int(now_s), 0
        self._num_refused += isinstance(event, AuthenticationRefused)
        if not isinstance(event, AuthenticationRefused) or self._num_refused <= MAX_REFUSALS_PER_S:
            self._put(record)

    def flush(self) -> None:
        """Put the count of the refusals that got no line."""
        if self._num_refused > MAX_REFUSALS_PER_S:
            self._put(_record(REFUSED, self._second, count=self._num_refused - MAX_REFUSALS_PER_S))


def _record(kind: str, at_s: float, **values: Any) -> Record:  # noqa: ANN401 - whatever JSON has
    return {"time": time_of(at_s), "kind": kind, **values}


def _num_bytes(request: Request) -> int:
    """Return the bytes of a request's text."""
    return sum(map(_size, (request.prefix, request.suffix, *(snippet.text for snippet in request.snippets))))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
