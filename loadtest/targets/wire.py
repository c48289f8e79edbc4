"""Requests and answers between the load tester's terms and those of package completion.v1. Pure."""

import hashlib
from dataclasses import dataclass

from completion.v1 import completion_pb2 as pb
from completion_client import ConnectionLostError, ServiceError
from completion_client.endpoint import Metadata, caller_metadata
from loadtest.targets import ClientSettings
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.typed import Trigger, TypedSession

_OUTCOMES = {
    pb.FINISH_REASON_SUPERSEDED: Outcome.SUPERSEDED,
    pb.FINISH_REASON_SHED: Outcome.SHED,
    pb.FINISH_REASON_DEADLINE: Outcome.DEADLINE,
    pb.FINISH_REASON_CANCELLED: Outcome.HUNG_UP,
}
_CACHE_LEVELS = {pb.CACHE_LEVEL_LOCAL: "local", pb.CACHE_LEVEL_SHARED: "shared"}
_WHOLE = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_TRIGGERS = {
    Trigger.AUTOMATIC: pb.TRIGGER_AUTOMATIC,
    Trigger.EXPLICIT: pb.TRIGGER_EXPLICIT,
    Trigger.PREFETCH: pb.TRIGGER_PREFETCH,
}
_DRAW_BYTES = 4
_MODES = {"single_line": pb.MODE_SINGLE_LINE, "multi_line": pb.MODE_MULTI_LINE}


@dataclass(frozen=True, slots=True)
class RequestFactory:
    """Makes the request messages of one session."""

    session: TypedSession
    name: str
    """The session's name."""
    user: str
    settings: ClientSettings

    @property
    def metadata(self) -> Metadata:
        """The metadata of the session's calls: its user and tenant."""
        return caller_metadata(self.user, self.settings.tenant)

    def message(self, record: Record, max_tokens: int | None) -> pb.CompleteRequest:
        """Return the message for a request."""
        request = record.request
        return pb.CompleteRequest(
            session_id=self.name,
            sequence=request.sequence,
            document_uri=self.session.document_uri,
            language_id=self.session.language_id,
            prefix=request.prefix,
            suffix=request.suffix,
            trigger=_TRIGGERS[request.trigger],
            mode=_MODES[self.settings.mode],
            max_tokens=max_tokens or request.max_tokens or self.settings.max_tokens,
            temperature=0.0,
            traceparent=self.traceparent(request.sequence),
            without_completion_cache=not self.settings.use_completion_cache,
        )

    def traceparent(self, sequence: int) -> str:
        """Return the trace that a request begins, "" for none. The name of the session differs from run to run."""
        share = self.settings.traced_share
        if not share:
            return ""
        digest = hashlib.blake2b(f"{self.name}/{sequence}".encode(), digest_size=_DRAW_BYTES + 24).hexdigest()
        draw, trace_id, span_id = digest[: 2 * _DRAW_BYTES], digest[2 * _DRAW_BYTES : -16], digest[-16:]
        return f"00-{trace_id}-{span_id}-01" if int(draw, 16) < share * 256**_DRAW_BYTES else ""


def error_text(error: ServiceError) -> str:
    """Return the text of an error for a report: the status and the message, or the message of a lost connection."""
    return error.message if isinstance(error, ConnectionLostError) else f"{error.status.name}: {error.message}"


def take_end(record: Record, end: pb.End) -> None:
    """End a record as an End says, which may bring the last text along."""
    if end.text:
        record.text_came(end.text)
    record.completion_tokens = end.usage.completion_tokens
    record.drafted_tokens, record.accepted_tokens = end.usage.drafted_tokens, end.usage.accepted_draft_tokens
    record.cache_level = _CACHE_LEVELS.get(end.usage.cache_level, "")
    if end.HasField("timings"):
        record.server = end.timings
    if end.finish_reason == pb.FINISH_REASON_SHED:
        record.shed_reason = pb.ShedReason.Name(end.shed_reason).removeprefix("SHED_REASON_").lower()
    if end.finish_reason in _WHOLE:
        record.end_whole()
    else:
        record.end(_OUTCOMES.get(end.finish_reason, Outcome.ERROR), end.error.message)
