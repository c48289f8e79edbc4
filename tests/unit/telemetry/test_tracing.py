"""Traces: the callers' headers, which requests are sampled, and the names of attributes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from opentelemetry.semconv._incubating.attributes import cloud_attributes, gen_ai_attributes, rpc_attributes
from opentelemetry.semconv.attributes import error_attributes, service_attributes
from opentelemetry.trace.span import TraceState
from prometheus_client import CollectorRegistry

from completion_server.core.errors import InvalidRequestError, UnavailableError
from completion_server.core.events import EndUnwritten, EndWritten, GenerationSource, Marks, RequestEnded
from completion_server.core.outcome import CacheLevel, End, FinishReason, Outcome, ShedReason, Usage
from completion_server.core.request import Caller, Request, Trigger
from completion_server.core.trace_context import ParentSpan, TraceContext
from completion_server.telemetry.metrics import Metrics
from completion_server.telemetry.tracing.spans import RequestTrace, describe, misses_budget
from completion_server.telemetry.tracing.tracer import HeadSampler, RateLimit, Tracer
from completion_server.telemetry.tracing.tracing import TracedServer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


SAMPLED = {
    f"00-{TRACE}-{SPAN}-01": True,
    f"00-{TRACE}-{SPAN}-00": False,
    f"00-{TRACE}-{SPAN}-03": True,  # level 2's flag of random trace ids
    f"00-{TRACE}-{SPAN}-02": False,
    f"cc-{TRACE}-{SPAN}-01-what-a-later-version-appends": True,
}
INVALID = (
    "", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-01\n",
    f"cc-{TRACE}-{SPAN}-01-{'x' * 100}", f"00-{TRACE[:-1]}٣-{SPAN}-01",
)  # fmt: skip
INVALID_STATES = (
    "x" * 513, f"a={'x' * 511}", "vendor=\n1", "vendor=é", "def add(a, b): return a", "a=1,def add", "a=1,a=2",
    "a=1,,b=2", "A=1", "a=", "a=1=2", ",".join(f"k{number}=1" for number in range(33)),
)  # fmt: skip


@pytest.mark.parametrize("traceparent", [*SAMPLED, *INVALID])
def test_a_valid_parent_is_read_and_another_ignored(traceparent: str) -> None:
    expected = None
    if traceparent in SAMPLED:
        expected = ParentSpan(TRACE, SPAN, SAMPLED[traceparent], "vendor=1")
    assert ParentSpan.parse(traceparent, "vendor=1") == expected


@pytest.mark.parametrize("state", INVALID_STATES)
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


REQUEST = Request("r", Caller("u", "s"), 0, "", "", "x = ", "", 8, 0.0)
ON_TIME = Marks(0.0, admitted=0.0, started=0.0, prompted=0.0, first_output=0.1, last_output=0.1, ended=0.2)
BUDGET_S = 0.15


@dataclass
class StillClock:
    at: float = 0.0

    def now(self) -> float:
        return self.at


def sampler(ratio: float, per_s: float = 1.0, clock: StillClock | None = None) -> HeadSampler:
    return HeadSampler(ratio, RateLimit(per_s, clock or StillClock()), seed=7)


def test_a_ratio_of_the_requests_without_a_callers_trace_is_sampled() -> None:
    one_in_ten = sampler(0.1)
    begun = [one_in_ten.begin("", "") for _ in range(10_000)]
    sampled = [context for context in begun if context is not None]
    assert 850 < len(sampled) < 1150
    assert all(context.is_sampled and context.parent is None for context in sampled)
    assert len({context.trace_id for context in sampled}) == len(sampled)
    assert sampler(0.0).begin("", "") is None
    assert sampler(1.0).begin("not a traceparent", "") is not None


def test_a_caller_is_followed_up_to_the_limit_and_sampled_at_random_beyond_it() -> None:
    clock = StillClock()
    two = sampler(0.0, 2.0, clock)

    def sampled(count: int) -> int:
        begun = [two.begin(f"00-{TRACE}-{SPAN}-01", "") for _ in range(count)]
        assert all(context is not None and context.trace_id == TRACE for context in begun)
        return sum(context is not None and context.is_sampled for context in begun)

    assert sampled(5) == 2
    clock.at += 0.5
    assert sampled(5) == 1
    clock.at += 100
    assert sampled(5) == 2
    beyond = sampler(1.0, 0.0).begin(f"00-{TRACE}-{SPAN}-01", "")
    assert beyond is not None
    assert beyond.is_sampled
    unrecorded = sampler(1.0).begin(f"00-{TRACE}-{SPAN}-00", "vendor=1")
    assert unrecorded is not None
    assert not unrecorded.is_sampled
    assert unrecorded.parent == ParentSpan(TRACE, SPAN, is_sampled=False, state="vendor=1")


@pytest.mark.parametrize(
    ("outcome", "changes", "is_missed"),
    [
        (Outcome(FinishReason.STOP), {}, False),
        (Outcome(FinishReason.STOP), {"first_output": 0.16}, True),
        (Outcome(FinishReason.SUPERSEDED), {"first_output": None}, True),
        (Outcome(FinishReason.SUPERSEDED), {"first_output": None, "ended": 0.1}, False),
        (Outcome(FinishReason.CANCELLED), {"first_output": None, "ended": 0.1}, False),
        (Outcome(FinishReason.SHED, ShedReason.OVERLOAD), {"first_output": None, "ended": 0.0}, True),
        (Outcome(FinishReason.SHED, ShedReason.DEADLINE_UNREACHABLE), {"first_output": None, "ended": 0.0}, True),
        (Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED), {"first_output": None, "ended": 0.0}, False),
        (Outcome(FinishReason.SHED, ShedReason.DRAINING), {"first_output": None, "ended": 0.0}, False),
        (Outcome(FinishReason.DEADLINE), {"first_output": None, "ended": 0.1}, True),
        (Outcome(FinishReason.DEADLINE), {}, False),
        (Outcome(FinishReason.ERROR, error=UnavailableError("down")), {"first_output": None, "ended": 0.1}, True),
        (Outcome(FinishReason.ERROR, error=InvalidRequestError("x", "y")), {"first_output": None}, False),
    ],
)
def test_a_budget_is_missed_if_somebody_waited_in_vain(
    outcome: Outcome, changes: dict[str, float | None], is_missed: bool
) -> None:
    marks = replace(ON_TIME, **changes)  # type: ignore[arg-type]
    assert misses_budget(REQUEST, outcome, marks, BUDGET_S) is is_missed
    assert not misses_budget(replace(REQUEST, trigger=Trigger.PREFETCH), outcome, marks, BUDGET_S)


class Exported:
    """A tracer, and what it passed on."""

    def __init__(self, missed_per_s: float = 10.0) -> None:
        self.traces: list[RequestTrace] = []
        self.num_limited = 0
        limit = RateLimit(missed_per_s, StillClock())
        self.tracer = Tracer(
            sampler(0.0), limit, BUDGET_S, {"model": "m"}, self.traces.append, on_missed_limit=self.note_limited
        )

    def note_limited(self) -> None:
        self.num_limited += 1

    def end(self, request: Request, marks: Marks = ON_TIME, reason: FinishReason = FinishReason.STOP) -> None:
        self.tracer.handle(RequestEnded(request, End(Outcome(reason)), marks))


def traced(request_id: str, *, is_sampled: bool = True) -> Request:
    return replace(REQUEST, id=request_id, trace=TraceContext(TRACE, SPAN, is_sampled))


LATE = replace(ON_TIME, first_output=0.19)


@pytest.mark.parametrize(
    ("last", "end"), [(lambda request: EndWritten(request, 0.3), 0.5), (lambda request: EndUnwritten(request), 0.2)]
)
def test_a_trace_ends_when_the_end_was_written_or_its_caller_left(
    last: Callable[[Request], object], end: float
) -> None:
    exported, request = Exported(), traced("r")
    exported.end(request)
    assert exported.traces == []
    exported.tracer.handle(last(request))  # type: ignore[arg-type]
    (trace,) = exported.traces
    assert trace.root.end == pytest.approx(end)
    assert ("stream" in [stage.name for stage in trace.stages]) is (end > 0.2)
    assert trace.root.attributes["model"] == "m"
    exported.tracer.flush()
    assert len(exported.traces) == 1


def test_unsampled_requests_are_exported_only_if_late_and_within_the_limit() -> None:
    exported = Exported(missed_per_s=2.0)
    for number in range(4):
        exported.end(traced(f"on time {number}", is_sampled=False))
        exported.end(replace(REQUEST, id=f"late {number}"), LATE)
    exported.end(traced("sampled"), LATE)
    exported.tracer.flush()
    assert [trace.root.attributes["completion.sampled"] for trace in exported.traces] == ["missed_budget"] * 2 + [
        "head"
    ]
    assert len({trace.context.trace_id for trace in exported.traces}) == 3
    assert exported.num_limited == 2


def test_requests_whose_end_is_never_reported_do_not_pile_up() -> None:
    exported = Exported()
    for number in range(5000):
        exported.end(traced(str(number)))
    assert len(exported.traces) == 5000 - 4096


def test_the_samples_of_a_late_request_name_the_trace_that_is_chosen_at_its_end() -> None:
    exported, registry = Exported(missed_per_s=1.0), CollectorRegistry()
    metrics = Metrics(registry)
    for number in range(2):  # the second is above the limit
        marks = replace(LATE, first_output=0.19 + 0.1 * number)
        ended = RequestEnded(replace(REQUEST, id=str(number)), End(Outcome(FinishReason.STOP)), marks)
        metrics.handle(exported.tracer.handle(ended))
    exported.tracer.flush()
    (trace,) = exported.traces
    buckets = {
        sample.labels["le"]: sample.exemplar and sample.exemplar.labels
        for family in registry.collect()
        if family.name == "completion_ttft_seconds"
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels["trigger"] == "automatic"
    }
    assert buckets["0.2"] == {"trace_id": trace.context.trace_id}
    assert [le for le, labels in buckets.items() if labels] == ["0.2"]


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
    service = TracedServer("1.0", "one", "us-east", "/models/coder-13b/", "vllm", "files-1")
    context = TraceContext("a" * 32, "b" * 16, is_sampled=True)
    trace = describe(
        RequestEnded(WHOLE_REQUEST, END, MARKS), context, service.attributes(), written=0.007, missed_budget=True
    )
    names = {*trace.root.attributes, *service.resource()}
    for stage in trace.stages:
        names |= set(stage.attributes)
    assert {name for name in names if not name.startswith("completion.")} <= known()
    assert trace.root.attributes["gen_ai.request.model"] == "coder-13b"
    assert trace.root.attributes["completion.model_revision"] == "files-1"
    assert trace.root.attributes["error.type"] == "UNAVAILABLE"
    values = str(trace)
    assert "secret" not in values
    assert "x.py" not in values
    assert trace.is_failed
    assert [stage.name for stage in trace.stages] == [
        "receive", "admission", "queue", "tokenise", "prefill", "decode", "stream",
    ]  # fmt: skip
