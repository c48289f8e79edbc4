"""Parsing and writing of W3C Trace Context."""

import pytest
from opentelemetry.trace.span import TraceState

from completion_server.core.trace_context import ParentSpan, TraceContext

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("traceparent", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # level 2's flag of random trace ids
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01-what-a-later-version-appends", True),
    ],
)
def test_a_valid_parent_is_read(traceparent: str, is_sampled: bool) -> None:
    assert ParentSpan.parse(traceparent, "vendor=1") == ParentSpan(TRACE, SPAN, is_sampled, "vendor=1")


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 100}",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_an_invalid_parent_is_ignored(traceparent: str) -> None:
    assert ParentSpan.parse(traceparent, "vendor=1") is None


@pytest.mark.parametrize(
    "state",
    [
        "x" * 513,
        f"a={'x' * 511}",
        "vendor=\n1",
        "vendor=é",
        "def add(a, b): return a",
        "a=1,def add",
        "a=1,a=2",
        "a=1,,b=2",
        "A=1",
        "a=",
        "a=1=2",
        ",".join(f"k{number}=1" for number in range(33)),
    ],
)
def test_an_invalid_state_is_dropped_alone(state: str) -> None:
    assert ParentSpan.parse(f"00-{TRACE}-{SPAN}-01", state) == ParentSpan(TRACE, SPAN, is_sampled=True)


@pytest.mark.parametrize("state", ["a=1", "a=1, b=2", "rojo=00f067aa0ba902b7,congo@ucc=t61 rcWk", "1a-_*/@v=~!"])
def test_a_valid_state_is_kept_and_the_sdk_takes_it(state: str, caplog: pytest.LogCaptureFixture) -> None:
    parent = ParentSpan.parse(f"00-{TRACE}-{SPAN}-01", state)
    assert parent is not None
    assert parent.state == state
    assert TraceState.from_header([state]).to_header() == state.replace(", ", ",")
    assert caplog.records == []


def test_the_headers_name_the_requests_own_span() -> None:
    parent = ParentSpan(TRACE, "b" * 16, is_sampled=True, state="vendor=1")
    sampled = TraceContext(TRACE, SPAN, is_sampled=True, parent=parent)
    assert sampled.headers() == {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
    assert TraceContext(TRACE, SPAN, is_sampled=False).headers() == {"traceparent": f"00-{TRACE}-{SPAN}-00"}
    read = ParentSpan.parse(sampled.headers()["traceparent"])
    assert read is not None
    assert (read.trace_id, read.span_id, read.is_sampled) == (TRACE, SPAN, True)
