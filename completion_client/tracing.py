"""The trace that a request is a part of, as headers of W3C Trace Context.

A request's fields `traceparent` and `tracestate` hold it. If they are empty and the program uses OpenTelemetry, they
get the current span. This module does not import OpenTelemetry: a program that traces has done so.

The standard: https://www.w3.org/TR/trace-context/
"""

import random
import sys

from completion.v1 import completion_pb2 as pb
from completion_client.endpoint import Metadata

_API = "opentelemetry.trace"


def make_traceparent(*, is_sampled: bool = True) -> str:
    """Return the header of a new trace. With `is_sampled` it asks servers to record their part, within their limits."""
    return f"00-{random.getrandbits(128) or 1:032x}-{random.getrandbits(64) or 1:016x}-{int(is_sampled):02x}"


def add_current_trace(message: pb.CompleteRequest) -> None:
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
