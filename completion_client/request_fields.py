"""The fields of a request that the library sets: session and number, deadline and trace.

The fields `traceparent` and `tracestate` hold the trace that a request is a part of, as headers of W3C Trace Context
(https://www.w3.org/TR/trace-context/). If they are empty and the program uses OpenTelemetry, they get the current span.
OpenTelemetry is not imported here: a program that traces has done so.
"""

import math
import random
import sys
import uuid

from completion.v1 import completion_pb2 as pb
from completion_client.endpoint import Metadata

_API = "opentelemetry.trace"

_MAX_TIMEOUT_MS = 86_400_000
"""The longest timeout that the contract allows."""


def make_traceparent(*, is_sampled: bool = True) -> str:
    """Return the header of a new trace. With `is_sampled` it asks servers to record their part, within their limits."""
    return f"00-{random.getrandbits(128) or 1:032x}-{random.getrandbits(64) or 1:016x}-{int(is_sampled):02x}"


def _add_current_trace(message: pb.CompleteRequest) -> None:
    """Set a request's trace to OpenTelemetry's current span, if there is one and the request has none."""
    api = sys.modules.get(_API)
    if api is None or message.traceparent:
        return
    span = api.get_current_span().get_span_context()
    if span.is_valid:
        message.traceparent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}"
        message.tracestate = span.trace_state.to_header()


def trace_metadata(message: pb.CompleteRequest) -> Metadata:
    """Return a request's trace as metadata of its call, where proxies on the way see it."""
    if not message.traceparent:
        return ()
    state = (("tracestate", message.tracestate),) if message.tracestate else ()
    return (("traceparent", message.traceparent), *state)


def give_timeout(request: pb.CompleteRequest, timeout_s: float) -> None:
    """Set the timeout of a request, unless it has a shorter one."""
    timeout_ms = min(max(1, math.ceil(timeout_s * 1000)), _MAX_TIMEOUT_MS)
    if not request.HasField("timeout_ms") or timeout_ms < request.timeout_ms:
        request.timeout_ms = timeout_ms


class Numbering:
    """Numbers the requests of one caller. The server takes an older number for a superseded request."""

    __slots__ = ("_last_sequence", "session_id")

    def __init__(self, session_id: str | None = None) -> None:
        """Begin a session."""
        self.session_id = session_id or f"client-{uuid.uuid4().hex[:12]}"
        """The session of requests that name none."""
        self._last_sequence = 0

    def numbered(self, request: pb.CompleteRequest, *, names_own: bool = True) -> pb.CompleteRequest:
        """Return a copy of a request that has a session, a sequence number and the current trace, if there is one.

        `names_own` keeps the session and the number that the request names.
        """
        message = pb.CompleteRequest()
        message.CopyFrom(request)
        if not names_own:
            message.session_id, message.sequence = "", 0
        message.session_id = message.session_id or self.session_id
        if not message.sequence:
            self._last_sequence += 1
            message.sequence = self._last_sequence
        _add_current_trace(message)
        return message
