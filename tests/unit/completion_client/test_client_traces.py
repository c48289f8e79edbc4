"""The trace that the client library sends with a request."""

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import use_span

from completion.v1 import completion_pb2 as pb
from completion_client import make_traceparent
from completion_client.calls import Numbering
from completion_client.tracing import trace_metadata
from completion_server.core.trace_context import ParentSpan
from loadtest.targets import ClientSettings
from loadtest.targets.wire import RequestFactory


def test_the_current_span_of_opentelemetry_is_sent() -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("keystroke")
    with use_span(span):
        message = Numbering().numbered(pb.CompleteRequest())
        explicit = Numbering().numbered(pb.CompleteRequest(traceparent="mine"))
    context = span.get_span_context()
    parent = ParentSpan.parse(message.traceparent, message.tracestate)
    assert parent == ParentSpan(f"{context.trace_id:032x}", f"{context.span_id:016x}", is_sampled=True)
    assert explicit.traceparent == "mine"
    assert Numbering().numbered(pb.CompleteRequest()).traceparent == ""


def test_a_program_without_opentelemetry_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert Numbering().numbered(pb.CompleteRequest()).traceparent == ""


@pytest.mark.parametrize("is_sampled", [True, False])
def test_a_new_trace_is_valid_and_goes_into_the_metadata(is_sampled: bool) -> None:
    traceparent = make_traceparent(is_sampled=is_sampled)
    parent = ParentSpan.parse(traceparent)
    assert parent is not None
    assert parent.is_sampled is is_sampled
    message = pb.CompleteRequest(traceparent=traceparent, tracestate="vendor=1")
    assert trace_metadata(message) == (("traceparent", traceparent), ("tracestate", "vendor=1"))
    assert trace_metadata(pb.CompleteRequest()) == ()


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.25, 200, 300), (1.0, 1000, 1000)])
def test_the_load_tester_traces_its_share_of_the_requests(share: float, least: int, most: int) -> None:
    factory = RequestFactory(None, "run-1", "u", ClientSettings(traced_share=share))  # type: ignore[arg-type]
    sent = [factory.traceparent(sequence) for sequence in range(1000)]
    traced = [ParentSpan.parse(each) for each in sent if each]
    assert least <= len(traced) <= most
    assert all(parent is not None and parent.is_sampled for parent in traced)
    assert len({parent.trace_id for parent in traced if parent is not None}) == len(traced)
