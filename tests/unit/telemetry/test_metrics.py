from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPConnection
from typing import get_args
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from completion_server.core import events
from completion_server.core.errors import CompletionError, InvalidRequestError
from completion_server.core.events import Marks
from completion_server.core.outcome import CacheLevel, End, FinishReason, Outcome, ServedAnswer, ShedReason, Usage
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import TraceContext
from completion_server.telemetry.metrics import Metrics, Snapshot
from completion_server.telemetry.metrics_server import MetricsServer, Probe

REQUEST = Request("r", Caller("u", "s"), 1, "", "", "secret code", "", 8, received_at=0.0)
MARKS = Marks(
    0.0, admitted=0.001, started=0.011, prompted=0.013, first_output=0.053, last_output=0.093, ended=0.094,
    tokens_at_first_output=1,
)  # fmt: skip
SERVED = ServedAnswer(0.05, 3)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_a_request_is_counted_and_each_of_its_stages_timed(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.handle(events.RequestEnded(REQUEST, End(Outcome(FinishReason.STOP), Usage(100, 80, 5, 8, 3)), MARKS))
    expected = {
        "admission": 0.001, "queue": 0.010, "tokenise": 0.002, "prefill": 0.040, "decode_token": 0.010, "total": 0.094,
    }  # fmt: skip
    for stage, seconds in expected.items():
        value = registry.get_sample_value("completion_stage_seconds_sum", {"stage": stage})
        assert value == pytest.approx(seconds), stage
    labels = {"outcome": "stop", "trigger": "automatic", "shed_reason": ""}
    assert registry.get_sample_value("completion_requests_total", labels) == 1
    assert registry.get_sample_value("completion_tokens_total", {"kind": "cached_prompt"}) == 80
    ttft = registry.get_sample_value("completion_ttft_seconds_sum", {"trigger": "automatic"})
    assert ttft == pytest.approx(0.053)
    assert metrics.ended == {"stop": 1}


def test_a_request_that_was_shed_has_no_stages_that_it_did_not_reach(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    end = End(Outcome(FinishReason.SHED, ShedReason.OVERLOAD))
    metrics.handle(events.RequestEnded(REQUEST, end, Marks(0.0, admitted=0.001, ended=0.002)))
    assert registry.get_sample_value("completion_stage_seconds_count", {"stage": "prefill"}) == 0
    labels = {"outcome": "shed", "trigger": "automatic", "shed_reason": "overload"}
    assert registry.get_sample_value("completion_requests_total", labels) == 1


def test_refused_requests_are_counted(registry: CollectorRegistry) -> None:
    Metrics(registry).handle(events.RequestRefused(InvalidRequestError("prefix", "too long")))
    assert registry.get_sample_value("completion_refused_requests_total", {"code": "invalid_argument"}) == 1


def test_hits_of_the_completion_cache_are_counted_with_what_they_saved(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    for level, age_s in ((CacheLevel.LOCAL, 3.0), (CacheLevel.LOCAL, 40.0), (CacheLevel.SHARED, 1.0)):
        metrics.handle(events.CacheHit(level, age_s, num_prompt_tokens=100, num_completion_tokens=20, engine_s=0.25))
    value = registry.get_sample_value
    assert value("completion_cache_hits_total", {"level": "local"}) == 2
    assert value("completion_cache_hits_total", {"level": "shared"}) == 1
    assert value("completion_cache_hit_age_seconds_sum", {"level": "local"}) == 43.0
    assert value("completion_cache_hit_age_seconds_bucket", {"level": "local", "le": "30.0"}) == 1
    assert value("completion_cache_saved_tokens_total", {"kind": "prompt"}) == 300
    assert value("completion_cache_saved_tokens_total", {"kind": "completion"}) == 60
    assert value("completion_cache_saved_engine_seconds_total") == 0.75


def test_misses_of_the_completion_cache_are_counted_by_reason(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    for reason in events.MissReason:
        metrics.handle(events.CacheMiss(CacheLevel.SHARED, reason))
        labels = {"level": "shared", "reason": reason.value}
        assert registry.get_sample_value("completion_cache_misses_total", labels) == 1
    metrics.handle(events.CacheReplied(0.002))
    assert registry.get_sample_value("completion_cache_lookup_seconds_sum") == 0.002


def test_no_text_of_a_request_is_in_the_metrics(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.handle(events.RequestEnded(REQUEST, End(Outcome(FinishReason.STOP)), MARKS))
    assert b"secret" not in generate_latest(registry)


def test_feedback_is_counted(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.handle(events.FeedbackReported(events.Feedback("accepted", accepted_characters=12), SERVED, ()))
    metrics.handle(events.FeedbackRefused())
    assert registry.get_sample_value("completion_feedback_total", {"kind": "accepted"}) == 1
    assert registry.get_sample_value("completion_feedback_total", {"kind": "refused"}) == 1
    assert registry.get_sample_value("completion_accepted_characters_total") == 12


def test_reattached_generations_and_wasted_tokens_are_counted(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.handle(events.GenerationReattached(7))
    metrics.handle(events.GenerationReattached(0))
    metrics.handle(events.GenerationDiverged(3))
    metrics.handle(
        events.RequestEnded(REQUEST, End(Outcome(FinishReason.CANCELLED), Usage(completion_tokens=5)), MARKS)
    )
    metrics.handle(events.RequestEnded(REQUEST, End(Outcome(FinishReason.STOP), Usage(completion_tokens=50)), MARKS))
    assert registry.get_sample_value("completion_generations_reattached_total") == 2
    assert registry.get_sample_value("completion_reattached_tokens_total") == 7
    assert registry.get_sample_value("completion_generations_diverged_total") == 1
    assert registry.get_sample_value("completion_wasted_tokens_total", {"outcome": "diverged"}) == 3
    assert registry.get_sample_value("completion_wasted_tokens_total", {"outcome": "cancelled"}) == 5
    assert registry.get_sample_value("completion_wasted_tokens_total", {"outcome": "stop"}) is None


def test_tokens_that_answered_several_requests_are_counted_once(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    usage = Usage(prompt_tokens=100, completion_tokens=5)
    metrics.handle(events.GenerationJoined(2))
    metrics.handle(events.RequestEnded(REQUEST, End(Outcome(FinishReason.STOP), replace(usage, is_shared=True)), MARKS))
    cancelled = End(Outcome(FinishReason.CANCELLED), replace(usage, is_shared=True))
    metrics.handle(events.RequestEnded(REQUEST, cancelled, MARKS))
    metrics.handle(events.RequestEnded(REQUEST, End(Outcome(FinishReason.STOP), usage), MARKS))
    assert registry.get_sample_value("completion_generations_joined_total") == 1
    assert registry.get_sample_value("completion_tokens_total", {"kind": "prompt"}) == 100
    assert registry.get_sample_value("completion_tokens_total", {"kind": "completion"}) == 5
    assert registry.get_sample_value("completion_wasted_tokens_total", {"outcome": "cancelled"}) is None
    assert registry.get_sample_value("completion_stage_seconds_count", {"stage": "total"}) == 3


def test_the_time_from_an_abort_to_a_free_slot_is_observed(registry: CollectorRegistry) -> None:
    Metrics(registry).handle(events.GenerationAborted(0.25))
    assert registry.get_sample_value("completion_abort_seconds_sum") == 0.25


def test_stalls_of_the_engine_are_counted(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    assert registry.get_sample_value("completion_engine_stalls_total") == 0
    metrics.handle(events.EngineStalled(30.0))
    assert registry.get_sample_value("completion_engine_stalls_total") == 1


def test_every_event_has_a_handler(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    end = End(Outcome(FinishReason.STOP))
    one_of_each: list[events.Event] = [
        events.RequestEnded(REQUEST, end, MARKS), events.RequestRefused(CompletionError("failed")),
        events.EndWritten(REQUEST, 0.1), events.EndUnwritten(REQUEST),
        events.GenerationReattached(1), events.GenerationJoined(1), events.GenerationDiverged(1),
        events.GenerationAborted(0.1), events.EngineStalled(3.0),
        events.FeedbackReported(events.Feedback("shown"), SERVED, ()), events.FeedbackRefused(), events.LoopLagged(0.1),
        events.CacheHit(CacheLevel.LOCAL, 1.0, 1, 1, 0.1), events.CacheReplied(0.1),
        events.CacheMiss(CacheLevel.LOCAL, events.MissReason.ABSENT),
    ]  # fmt: skip
    assert {type(event) for event in one_of_each} == set(get_args(events.Event))
    for event in one_of_each:
        metrics.handle(event)


def test_the_snapshot_reads_the_parts_at_each_scrape(registry: CollectorRegistry) -> None:
    depth = [3.0]
    registry.register(Snapshot({"queued_requests": lambda: depth[0]}, {"engine_restarts": lambda: 1.0}))
    depth[0] = 4.0
    assert registry.get_sample_value("completion_queued_requests") == 4
    assert registry.get_sample_value("completion_engine_restarts_total") == 1


def test_metrics_are_served_over_http_until_stop_frees_the_port(registry: CollectorRegistry) -> None:
    Metrics(registry)
    server = MetricsServer("127.0.0.1", 0, registry)
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
            assert b"completion_stage_seconds" in answer.read()
    finally:
        server.stop()
    MetricsServer("127.0.0.1", server.port, registry).stop()


def fetch(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers=dict(headers or {}))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_probes_answer_at_their_paths_and_nothing_at_others(registry: CollectorRegistry) -> None:
    state = [Probe(is_passed=False, state="starting")]
    server = MetricsServer("127.0.0.1", 0, registry, {"/readyz": lambda: state[0]})
    try:
        assert fetch(server.port, "/readyz") == (503, "starting\n")
        state[0] = Probe(is_passed=True, state="ready")
        assert fetch(server.port, "/readyz?verbose") == (200, "ready\n")
        assert fetch(server.port, "/metrics")[0] == 200
        for path in ("/", "/ready", "/healthz", "/metrics/x", "/favicon.ico"):
            assert fetch(server.port, path) == (404, "not found; known here: /metrics, /readyz\n")
    finally:
        server.stop()


def test_the_page_has_no_times_of_creation(registry: CollectorRegistry) -> None:
    Metrics(registry).handle(events.LoopLagged(0.1))
    server = MetricsServer("127.0.0.1", 0, registry)
    try:
        page = fetch(server.port, "/metrics")[1]
    finally:
        server.stop()
    assert "completion_loop_lag_seconds_count 1.0" in page
    assert "_created" not in page


def test_samples_of_sampled_traces_link_to_them_in_openmetrics(registry: CollectorRegistry) -> None:
    sampled, other = (TraceContext(digit * 32, "1" * 16, is_sampled=digit == "a") for digit in "ab")
    metrics = Metrics(registry)
    end = End(Outcome(FinishReason.STOP), Usage(completion_tokens=5))
    for trace in (None, sampled, other):
        metrics.handle(events.RequestEnded(replace(REQUEST, trace=trace), end, MARKS))
        metrics.handle(events.EndWritten(replace(REQUEST, trace=trace), 0.0004))
    server = MetricsServer("127.0.0.1", 0, registry)
    try:
        plain = fetch(server.port, "/metrics")[1]
        page = fetch(server.port, "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})[1]
    finally:
        server.stop()
    assert "trace_id" not in plain
    assert page.endswith("# EOF\n")
    assert "b" * 32 not in page
    linked = [line for line in page.splitlines() if f'# {{trace_id="{"a" * 32}"}}' in line]
    assert [line.split("{")[0] for line in linked] == ["completion_stage_seconds_bucket"] * 7 + [
        "completion_ttft_seconds_bucket"
    ]
