"""Traces: the callers' headers, which requests are traced, and the names of attributes."""

import random
from dataclasses import dataclass, field, replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv._incubating.attributes import cloud_attributes, gen_ai_attributes, rpc_attributes
from opentelemetry.semconv.attributes import error_attributes, service_attributes
from prometheus_client import CollectorRegistry

from completion_server.app.monitoring import make_tracing
from completion_server.core.clock import MonotonicClock
from completion_server.core.errors import UnavailableError
from completion_server.core.events import AnswerClosed, Event, GenerationSource, Marks, RequestEnded
from completion_server.core.outcome import CacheLevel, End, FinishReason, Outcome, ShedReason, Usage
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import TraceContext
from completion_server.ops.metrics import Metrics
from completion_server.ops.tracing import tracing
from completion_server.ops.tracing.spans import describe, is_failed
from tests.support.server import make_config

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
INVALID = (
    "", f"00-{TRACE}-{SPAN}", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
)  # fmt: skip
REQUEST = Request("r", Caller("u", "s"), 0, "", "", "x = ", "", 8, 0.0)
ON_TIME = Marks(0.0, admitted=0.0, started=0.0, prompted=0.0, first_output=0.1, last_output=0.1, ended=0.2)
LATE = replace(ON_TIME, first_output=0.19)


@dataclass
class Exported:
    """Traces of a server, the events that others hear, and the spans that the SDK was given."""

    traces: tracing.Tracing
    heard: list[Event] = field(default_factory=list)
    spans: list[ReadableSpan] = field(default_factory=list)

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def emit(self, event: Event) -> None:
        self.traces.heard_by(self.heard.append)(event)

    def end(self, request: Request, marks: Marks = ON_TIME, stream_s: float | None = None) -> None:
        ended = RequestEnded(request, End(Outcome(FinishReason.STOP)), marks)
        num_spans = len(self.spans)
        self.emit(ended)
        assert len(self.spans) == num_spans, "its End may still be written"
        self.emit(AnswerClosed(ended, stream_s))

    def roots(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name.startswith("completion.v1.")]


def make_traces(*overrides: str) -> tracing.Tracing:
    config = make_config(
        "traces.endpoint=http://127.0.0.1:1", "shed.budget_ms=150", "server.region=us-east", *overrides
    )
    traces = make_tracing(config, MonotonicClock())
    assert traces is not None
    return traces


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Exported:
    found = Exported(make_traces("traces.sample_ratio=0"))
    monkeypatch.setattr(tracing, "BatchSpanProcessor", lambda _exporter: found)
    found.traces.start(has_engine_spans=False)
    return found


@pytest.mark.parametrize("traceparent", INVALID)
def test_an_invalid_parent_is_ignored(traceparent: str) -> None:
    context = make_traces("traces.sample_ratio=1").begin(traceparent, "vendor=1")
    assert context.trace_id != TRACE
    assert (context.is_sampled, context.parent_id, context.state) == (True, "", "")


@pytest.mark.parametrize(("flags", "is_sampled"), [("01", True), ("00", False), ("03", True), ("02", False)])
def test_a_caller_is_followed(flags: str, is_sampled: bool) -> None:
    for ratio in (0, 1):
        context = make_traces(f"traces.sample_ratio={ratio}").begin(f"00-{TRACE}-{SPAN}-{flags}", "vendor=1")
        assert context == TraceContext(TRACE, context.span_id, is_sampled, SPAN, "vendor=1")
        assert context.span_id != SPAN


def test_an_invalid_state_is_dropped_without_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    context = make_traces().begin(f"00-{TRACE}-{SPAN}-01", "def add(a, b): return a")
    assert (context.trace_id, context.state) == (TRACE, "")
    assert caplog.records == []


def test_a_ratio_of_the_requests_without_a_callers_trace_is_sampled() -> None:
    random.seed(7)
    one_in_ten = make_traces("traces.sample_ratio=0.1")
    begun = [one_in_ten.begin("", "") for _ in range(10_000)]
    assert 800 < sum(context.is_sampled for context in begun) < 1200
    assert len({context.trace_id for context in begun}) == len(begun)


def test_the_headers_name_the_requests_own_span() -> None:
    sampled = TraceContext(TRACE, SPAN, is_sampled=True, parent_id="b" * 16, state="vendor=1")
    assert sampled.headers() == {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
    assert TraceContext(TRACE, SPAN, is_sampled=False).headers() == {"traceparent": f"00-{TRACE}-{SPAN}-00"}


def traced(request_id: str, *, is_sampled: bool = True) -> Request:
    trace_id = f"{int(request_id.encode().hex(), 16):032x}"
    return replace(REQUEST, id=request_id, trace=TraceContext(trace_id, SPAN, is_sampled))


@pytest.mark.parametrize(("stream_s", "seconds"), [(0.3, 0.5), (None, 0.2)])
def test_a_trace_ends_when_the_end_was_written_or_its_caller_left(
    exported: Exported, stream_s: float | None, seconds: float
) -> None:
    exported.end(traced("r"), stream_s=stream_s)
    (root,) = exported.roots()
    assert root.start_time is not None
    assert root.end_time is not None
    assert root.end_time - root.start_time == pytest.approx(seconds * 1e9, abs=1000)
    assert ("stream" in [span.name for span in exported.spans]) is (seconds > 0.2)
    assert root.resource.attributes["cloud.region"] == "us-east"


def test_unsampled_requests_are_exported_only_if_late(exported: Exported) -> None:
    for request, marks in (
        (traced("on time", is_sampled=False), ON_TIME), (traced("late", is_sampled=False), LATE),
        (traced("sampled"), LATE), (traced("sampled on time"), ON_TIME),
    ):  # fmt: skip
        exported.end(request, marks)
    found = [span.attributes or {} for span in exported.roots()]
    assert [(each["completion.sampled"], each["completion.missed_budget"]) for each in found] == [
        ("missed_budget", True), ("head", True), ("head", False),
    ]  # fmt: skip


def test_the_samples_of_a_late_request_name_the_trace_that_is_chosen_at_its_end(exported: Exported) -> None:
    request = traced("late", is_sampled=False)
    exported.end(request, LATE, stream_s=0.3)
    registry = CollectorRegistry()
    metrics = Metrics(registry, budget_s=0.15)
    for event in exported.heard:
        metrics.handle(event)
    named = {
        (sample.name, sample.labels["le"], sample.labels.get("stage")): sample.exemplar.labels
        for family in registry.collect()
        for sample in family.samples
        if sample.exemplar is not None and sample.labels.get("stage") in {None, "stream"}
    }
    (root,) = exported.roots()
    assert root.context is not None
    trace = {"trace_id": f"{root.context.trace_id:032x}"}
    assert named == {
        ("completion_ttft_seconds_bucket", "0.2", None): trace,
        ("completion_stage_seconds_bucket", "0.3", "stream"): trace,
    }


WHOLE_REQUEST = Request("r", Caller("u", "s"), 0, "file:///x.py", "python", "x = ", "", 8, 0.0, receive_began_at=-0.01)
MARKS = Marks(0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 1, 0.006, source=GenerationSource.OWN)
OUTCOME = Outcome(FinishReason.ERROR, ShedReason.OVERLOAD, error=UnavailableError("secret text"))
END = End(OUTCOME, Usage(10, 5, 3, 2, 1, cache_level=CacheLevel.SHARED))


def known() -> set[str]:
    """Every name of the conventions that is not deprecated."""
    found: set[str] = set()
    for module in (cloud_attributes, gen_ai_attributes, rpc_attributes, error_attributes, service_attributes):
        found |= {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    deprecated = {
        rpc_attributes.RPC_SERVICE, rpc_attributes.RPC_SYSTEM, rpc_attributes.RPC_GRPC_STATUS_CODE,
        gen_ai_attributes.GEN_AI_SYSTEM, gen_ai_attributes.GEN_AI_USAGE_PROMPT_TOKENS,
        gen_ai_attributes.GEN_AI_USAGE_COMPLETION_TOKENS, gen_ai_attributes.GEN_AI_PROMPT,
        gen_ai_attributes.GEN_AI_COMPLETION,
    }  # fmt: skip
    return found - deprecated


def test_attributes_are_those_of_the_conventions_or_our_own() -> None:
    traces = make_traces("engine.revision=files-1")
    context = TraceContext("a" * 32, "b" * 16, is_sampled=True)
    event = RequestEnded(WHOLE_REQUEST, END, MARKS)
    root, stages = describe(event, context, traces._attributes, stream_s=0.001, missed_budget=True)
    names = {*root.attributes, *(name for stage in stages for name in stage.attributes)}
    names |= {name for name in traces._resource.attributes if not name.startswith("telemetry.sdk.")}
    assert {name for name in names if not name.startswith("completion.")} <= known()
    assert root.attributes["completion.model_revision"] == "files-1"
    assert root.attributes["error.type"] == "UNAVAILABLE"
    values = f"{root}{stages}"
    assert "secret" not in values
    assert "x.py" not in values
    assert is_failed(END.outcome)
    assert [stage.name for stage in stages] == [
        "receive", "admission", "queue", "tokenise", "prefill", "decode", "stream",
    ]  # fmt: skip
