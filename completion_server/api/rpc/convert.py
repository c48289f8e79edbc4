"""Converts messages to the types of `core` and back. Refuses texts that are too large, and invalid values."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from completion.v1 import completion_pb2 as pb
from completion_server.api.fields import (
    check_entries,
    check_next_edit,
    check_text,
    default_max_tokens,
    edit_lines_of,
    max_tokens_of,
    next_request_id,
    recent_edit_of,
    sampling_of,
)
from completion_server.core.clock import Deadline
from completion_server.core.errors import CompletionError, InvalidRequestError
from completion_server.core.events import Feedback
from completion_server.core.next_edit import NextEdit, RecentEdit
from completion_server.core.outcome import AnswerPart, CacheLevel, Delta, End, FinishReason, ShedReason
from completion_server.core.request import Caller, Mode, Request, Snippet, Trigger
from completion_server.core.trace_context import TraceContext
from completion_server.requests.limits.settings import LimitSettings

_TRIGGERS = {
    pb.TRIGGER_UNSPECIFIED: Trigger.AUTOMATIC,
    pb.TRIGGER_AUTOMATIC: Trigger.AUTOMATIC,
    pb.TRIGGER_EXPLICIT: Trigger.EXPLICIT,
    pb.TRIGGER_PREFETCH: Trigger.PREFETCH,
}
_MODES = {
    pb.MODE_UNSPECIFIED: Mode.SINGLE_LINE,
    pb.MODE_SINGLE_LINE: Mode.SINGLE_LINE,
    pb.MODE_MULTI_LINE: Mode.MULTI_LINE,
    pb.MODE_NEXT_EDIT: Mode.NEXT_EDIT,
}
# The names of these values are the same on both sides.
_FINISH_REASONS = {each: pb.FinishReason.Value(f"FINISH_REASON_{each.name}") for each in FinishReason}
_SHED_REASONS = {each: pb.ShedReason.Value(f"SHED_REASON_{each.name}") for each in ShedReason}
_CACHE_LEVELS = {each: pb.CacheLevel.Value(f"CACHE_LEVEL_{each.name}") for each in CacheLevel}
_FEEDBACK_KINDS = {
    pb.FeedbackKind.Value(f"FEEDBACK_KIND_{kind.upper()}"): kind
    for kind in ("shown", "accepted", "accepted_word", "accepted_line", "rejected", "survived")
}
_NAMES: dict[type[Message], tuple[str, ...]] = {
    kind: tuple(each.name for each in kind.DESCRIPTOR.fields) for kind in (pb.Usage, pb.Timings, pb.Edit)
}
T = TypeVar("T")
V = TypeVar("V", bound=int)
M = TypeVar("M", bound=Message)

_SURVIVAL_TIMES_S = (30, 90, 180, 360)
_MAX_TIMEOUT_MS = 86_400_000


def request_of(
    message: pb.CompleteRequest,
    caller: Caller,
    limits: LimitSettings,
    deadline_s: float,
    now: float,
    receive_began_at: float | None = None,
    trace: TraceContext | None = None,
) -> Request:
    """Return the request of a message that was received by `now`.

    The earliest of `deadline_s`, the remaining time of the call, of the message's own timeout and of the server's
    limit is the deadline.

    Raises InvalidRequestError: a field is invalid; the error names the field, the limit and the value.
    """
    # Each access to a text makes another copy of it.
    uri, language, prefix, suffix = message.document_uri, message.language_id, message.prefix, message.suffix
    check_text("document_uri", uri, limits.max_uri_bytes)
    check_text("language_id", language, limits.max_session_id_bytes)
    check_text("prefix", prefix, limits.max_prefix_bytes)
    check_text("suffix", suffix, limits.max_suffix_bytes)
    mode = _known("mode", message.mode, _MODES, pb.Mode.Name)
    check_next_edit(mode, has_next_edit=message.HasField("next_edit"), num_stops=len(message.stop))
    return Request(
        id=next_request_id(),
        caller=caller,
        sequence=message.sequence,
        document_uri=uri,
        language_id=language,
        prefix=prefix,
        suffix=suffix,
        max_tokens=_max_tokens(message.max_tokens, mode, limits),
        received_at=now,
        snippets=tuple(_snippets(message, limits)),
        trigger=_known("trigger", message.trigger, _TRIGGERS, pb.Trigger.Name),
        mode=mode,
        sampling=sampling_of(
            message.temperature if message.HasField("temperature") else None,
            message.seed if message.HasField("seed") else None,
            speculate=not message.without_speculation,
        ),
        stop=tuple(_stops(message, limits)),
        deadline=Deadline.after(min(limits.max_deadline_s, _timeout_s(message), deadline_s), now),
        use_completion_cache=not message.without_completion_cache,
        next_edit=_next_edit(message.next_edit, limits) if mode is Mode.NEXT_EDIT else None,
        receive_began_at=receive_began_at,
        trace=trace,
    )


def session_id_of(message: pb.CompleteRequest | pb.ReportFeedbackRequest, limits: LimitSettings) -> str:
    """Return a message's session id. Raises InvalidRequestError: it is empty or too long."""
    if not message.session_id:
        raise InvalidRequestError("session_id", "must not be empty")
    check_text("session_id", message.session_id, limits.max_session_id_bytes)
    return message.session_id


def feedback_of(message: pb.ReportFeedbackRequest) -> Feedback:
    """Return the feedback of a message. Raises InvalidRequestError: a field is bad."""
    kind = _known("kind", message.kind, _FEEDBACK_KINDS, pb.FeedbackKind.Name)
    if kind == "survived" and message.survived_after_s not in _SURVIVAL_TIMES_S:
        fault = f"must be one of {', '.join(map(str, _SURVIVAL_TIMES_S))}, got {message.survived_after_s}"
        raise InvalidRequestError("survived_after_s", fault)
    if not 0.0 <= message.survived_share <= 1.0:
        raise InvalidRequestError("survived_share", f"must be from 0 to 1, got {message.survived_share:g}")
    return Feedback(kind, message.accepted_characters, message.survived_after_s, message.survived_share)


def _known(field: str, value: V, known: Mapping[V, T], name: Callable[[V], str]) -> T:
    try:
        return known[value]
    except KeyError:
        *names, given = (_name_or_number(each, name) for each in (*sorted(known), value))
        raise InvalidRequestError(field, f"must be one of {', '.join(names)}, got {given}") from None


def _name_or_number(value: V, name: Callable[[V], str]) -> str:
    try:
        return name(value)
    except ValueError:  # a value of a newer contract
        return str(value)


def _max_tokens(given: int, mode: Mode, limits: LimitSettings) -> int:
    most = max_tokens_of(mode, limits)
    if not 0 <= given <= most:
        raise InvalidRequestError("max_tokens", f"must be from 0 (the default) to {most}, got {given}")
    return given or default_max_tokens(mode, limits)


def _timeout_s(message: pb.CompleteRequest) -> float:
    """Return the time that a message gives its request, infinity if it gives none."""
    if not message.HasField("timeout_ms"):
        return math.inf
    if not 1 <= message.timeout_ms <= _MAX_TIMEOUT_MS:
        raise InvalidRequestError("timeout_ms", f"must be from 1 to {_MAX_TIMEOUT_MS}, got {message.timeout_ms}")
    return message.timeout_ms / 1000


def _snippets(message: pb.CompleteRequest, limits: LimitSettings) -> Iterator[Snippet]:
    check_entries("snippets", len(message.snippets), limits.max_snippets)
    for i, snippet in enumerate(message.snippets):
        uri, text, score = snippet.uri, snippet.text, snippet.score
        check_text(f"snippets[{i}].uri", uri, limits.max_uri_bytes)
        check_text(f"snippets[{i}].text", text, limits.max_snippet_bytes)
        if not math.isfinite(score):
            raise InvalidRequestError(f"snippets[{i}].score", f"must be a finite number, got {score:g}")
        yield Snippet(uri, text, score)


def _stops(message: pb.CompleteRequest, limits: LimitSettings) -> Iterator[str]:
    check_entries("stop", len(message.stop), limits.max_stop)
    for i, stop in enumerate(message.stop):
        if not stop:
            raise InvalidRequestError(f"stop[{i}]", "must not be empty")
        check_text(f"stop[{i}]", stop, limits.max_stop_bytes)
        yield stop


def _next_edit(message: pb.NextEdit, limits: LimitSettings) -> NextEdit:
    check_entries("next_edit.recent_edits", len(message.recent_edits), limits.max_recent_edits)
    edits = list[RecentEdit]()
    for i, edit in enumerate(message.recent_edits):
        field, uri, diff = f"next_edit.recent_edits[{i}]", edit.document_uri, edit.diff
        check_text(f"{field}.document_uri", uri, limits.max_uri_bytes)
        check_text(f"{field}.diff", diff, limits.max_recent_edit_bytes)
        edits.append(recent_edit_of(field, uri, diff))
    before, after = (
        edit_lines_of(f"next_edit.{name}", getattr(message, name) if message.HasField(name) else None, limits)
        for name in ("lines_before", "lines_after")
    )
    return NextEdit(message.document_version, tuple(edits), before, after)


def end_message(end: End) -> pb.End:
    """Return the message of an End."""
    outcome = end.outcome
    message = pb.End(
        text=end.text,
        finish_reason=_FINISH_REASONS[outcome.reason],
        usage=_copied(pb.Usage, end.usage, cache_level=_CACHE_LEVELS[end.usage.cache_level]),
        timings=_copied(pb.Timings, end.timings),
        edit=None if end.edit is None else _copied(pb.Edit, end.edit),
    )
    if outcome.shed_reason is not None:
        message.shed_reason = _SHED_REASONS[outcome.shed_reason]
    if outcome.retry_after_ms is not None:
        message.retry_after_ms = outcome.retry_after_ms
    limit = outcome.limit
    if outcome.error is not None:
        message.error.CopyFrom(_error_message(outcome.error))
        limit = outcome.error.limit
    if limit is not None:
        message.limit.name, message.limit.allowed = limit.name, limit.allowed
    return message


def _copied(kind: type[M], source: object, **fields: int) -> M:
    """Return a message with these fields; the others have the names and values of the attributes of `source`."""
    return kind(**{name: getattr(source, name) for name in _NAMES[kind] if name not in fields}, **fields)


def _error_message(error: CompletionError) -> pb.RequestError:
    violations = [pb.FieldViolation(field=v.field, description=v.description) for v in error.violations]
    reason = pb.ErrorReason.Value(f"ERROR_REASON_{error.reason}") if error.reason else pb.ERROR_REASON_UNSPECIFIED
    return pb.RequestError(code=int(error.code), message=error.message, field_violations=violations, reason=reason)


def _fields_of(event: AnswerPart) -> dict[str, Any]:
    return {"delta": pb.Delta(text=event.text)} if isinstance(event, Delta) else {"end": end_message(event)}


def response_of(event: AnswerPart) -> pb.CompleteResponse:
    """Return the message of an event of a call."""
    return pb.CompleteResponse(**_fields_of(event))


def session_response_of(sequence: int, event: AnswerPart) -> pb.SessionResponse:
    """Return the message of an event of a request in a session."""
    return pb.SessionResponse(sequence=sequence, **_fields_of(event))


def refusal_of(sequence: int, error: CompletionError) -> pb.SessionResponse:
    """Return the answer to a message of a session that began no request."""
    return pb.SessionResponse(sequence=sequence, refusal=pb.Refusal(error=_error_message(error)))
