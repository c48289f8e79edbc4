"""Metrics of requests and of the engine, and the page that serves them."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from typing import get_args
from weakref import WeakSet

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from completion_server.core import events
from completion_server.core.errors import CompletionError, InvalidRequestError
from completion_server.core.events import Marks
from completion_server.core.outcome import CacheLevel, End, FinishReason, Outcome, ServedAnswer, ShedReason, Usage
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import TraceContext
from completion_server.ops.collectors import Snapshot
from completion_server.ops.metrics import Metrics
from completion_server.ops.metrics_server import LabelledRegistry, MetricsServer, Probe, render

REQUEST = Request("r", Caller("u", "s"), 1, "", "", "secret code", "", 8, received_at=0.0)
MARKS = Marks(
    0.0, admitted=0.001, started=0.011, prompted=0.013, first_output=0.053, last_output=0.093, ended=0.094,
    tokens_at_first_output=1,
)  # fmt: skip
SERVED = ServedAnswer(0.05, 3)
Fetch = Callable[..., tuple[int, str]]


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
    assert metrics.num_ended() == {"stop": 1}


@pytest.mark.parametrize(
    ("reason", "has_text", "is_timed"),
    [
        (FinishReason.STOP, True, True),
        (FinishReason.SUPERSEDED, True, True),
        (FinishReason.STOP, False, False),
        (FinishReason.LENGTH, False, False),
        (FinishReason.ERROR, True, False),
        (FinishReason.ERROR, False, False),
    ],
)
def test_failed_and_empty_answers_have_no_ttft(
    registry: CollectorRegistry, reason: FinishReason, has_text: bool, is_timed: bool
) -> None:
    metrics = Metrics(registry, tenants=("acme",))
    outcome = Outcome(reason, error=CompletionError("x") if reason is FinishReason.ERROR else None)
    metrics.handle(events.RequestEnded(REQUEST, End(outcome, Usage(100, 80, 5)), MARKS, has_text=has_text))
    for name, labels in (("ttft", {"trigger": "automatic"}), ("tenant_ttft", {"tenant": "other"})):
        assert registry.get_sample_value(f"completion_{name}_seconds_count", labels) == is_timed


def test_a_request_that_was_shed_has_no_stages_that_it_did_not_reach(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    end = End(Outcome(FinishReason.SHED, ShedReason.OVERLOAD))
    metrics.handle(events.RequestEnded(REQUEST, end, Marks(0.0, admitted=0.001, ended=0.002)))
    assert registry.get_sample_value("completion_stage_seconds_count", {"stage": "prefill"}) == 0
    labels = {"outcome": "shed", "trigger": "automatic", "shed_reason": "overload"}
    assert registry.get_sample_value("completion_requests_total", labels) == 1


HIT = events.CacheHit(CacheLevel.LOCAL, 40.0, num_prompt_tokens=100, num_completion_tokens=20, engine_s=0.25)
WASTED = events.RequestEnded(REQUEST, End(Outcome(FinishReason.CANCELLED), Usage(completion_tokens=5)), MARKS)


@pytest.mark.parametrize(
    ("event", "counted"),
    [
        (events.RequestRefused(InvalidRequestError("prefix", "too long")),
         {'refused_requests_total{code="invalid_argument"}': 1}),
        (HIT, {'cache_hits_total{level="local"}': 1, 'cache_hits_total{level="shared"}': 0,
               'cache_hit_age_seconds_sum{level="local"}': 40,
               'cache_hit_age_seconds_bucket{le="30.0",level="local"}': 0,
               'cache_saved_tokens_total{kind="prompt"}': 100, 'cache_saved_tokens_total{kind="completion"}': 20,
               "cache_saved_engine_seconds_total": 0.25}),
        *((events.CacheMiss(CacheLevel.SHARED, reason),
           {f'cache_misses_total{{level="shared",reason="{reason.value}"}}': 1}) for reason in events.MissReason),
        (events.CacheReplied(0.002), {"cache_lookup_seconds_sum": 0.002}),
        (events.FeedbackReported(events.Feedback("accepted", accepted_characters=12), SERVED, ()),
         {'feedback_total{kind="accepted"}': 1, "accepted_characters_total": 12}),
        (events.FeedbackRefused(), {'feedback_total{kind="refused"}': 1}),
        (events.GenerationReattached(7), {"generations_reattached_total": 1, "reattached_tokens_total": 7}),
        (events.GenerationJoined(2), {"generations_joined_total": 1}),
        (events.GenerationDiverged(3),
         {"generations_diverged_total": 1, 'wasted_tokens_total{outcome="diverged"}': 3}),
        (WASTED, {'wasted_tokens_total{outcome="cancelled"}': 5}),
        (events.EngineStalled(30.0), {"engine_stalls_total": 1}),
        (events.LoopLagged(0.1), {"loop_lag_seconds_count": 1}),
        (events.CredentialsChecked("key", "revoked"), {'authentications_total{kind="key",result="revoked"}': 1}),
        (events.CredentialSourceRead("auth.issuer", has_failed=True),
         {'credential_source_failed{source="auth.issuer"}': 1}),
        (events.CredentialSourceRead("auth.issuer", has_failed=False),
         {'credential_source_failed{source="auth.issuer"}': 0}),
    ],
)  # fmt: skip
def test_an_event_is_counted(registry: CollectorRegistry, event: events.Event, counted: dict[str, float]) -> None:
    Metrics(registry).handle(event)
    values = dict(line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#")
    assert {name: float(values[f"completion_{name}"]) for name in counted} == counted
    assert not [name for name in values if name.startswith("completion_wasted") and 'outcome="stop"' in name]


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


class Text(str):
    """Text that a weak reference can refer to."""


def test_few_requests_are_kept_although_nobody_reads_the_metrics(registry: CollectorRegistry) -> None:
    metrics, texts = Metrics(registry), WeakSet[Text]()
    for number in range(1000):
        text = Text(number)
        texts.add(text)
        metrics.handle(events.RequestEnded(replace(REQUEST, prefix=text), WASTED.end, MARKS))
    assert len(texts) <= 100
    assert metrics.num_ended() == {"cancelled": 1000}
    assert len(texts) == 1, "that of this test"


def test_scrapes_in_other_threads_lose_nothing(registry: CollectorRegistry) -> None:
    metrics, num = Metrics(registry), 5000
    with ThreadPoolExecutor(2) as threads:
        scrapes = [threads.submit(generate_latest, registry) for _ in range(50)]
        for _ in range(num):
            metrics.handle(WASTED)
        assert all(scrape.result() for scrape in scrapes)
    labels = {"outcome": "cancelled", "trigger": "automatic", "shed_reason": ""}
    assert registry.get_sample_value("completion_requests_total", labels) == num
    assert registry.get_sample_value("completion_stage_seconds_count", {"stage": "total"}) == num
    assert registry.get_sample_value("completion_stage_seconds_sum", {"stage": "total"}) == pytest.approx(num * 0.094)


def test_every_event_has_a_handler(registry: CollectorRegistry) -> None:
    assert Metrics(registry)._handlers.keys() == set(get_args(events.Event))


def test_the_snapshot_reads_the_parts_at_each_scrape(registry: CollectorRegistry) -> None:
    depth = [3.0]
    registry.register(Snapshot({"queued_requests": lambda: depth[0]}, {"engine_restarts": lambda: 1.0}))
    depth[0] = 4.0
    assert registry.get_sample_value("completion_queued_requests") == 4
    assert registry.get_sample_value("completion_engine_restarts_total") == 1


@contextmanager
def serving(registry: CollectorRegistry, probes: Mapping[str, Callable[[], Probe]] | None = None) -> Iterator[Fetch]:
    """Serve a registry, and yield a function that fetches a path: the status and the text."""
    server = MetricsServer("127.0.0.1", 0, registry, probes)

    def fetch(path: str, **headers: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    try:
        yield fetch
    finally:
        server.stop()
    MetricsServer("127.0.0.1", server.port, registry).stop()  # the port is free


def test_probes_answer_at_their_paths_and_nothing_at_others(registry: CollectorRegistry) -> None:
    state = [Probe(is_passed=False, state="starting")]
    with serving(registry, {"/readyz": lambda: state[0]}) as fetch:
        assert fetch("/readyz") == (503, "starting\n")
        state[0] = Probe(is_passed=True, state="ready")
        assert fetch("/readyz?verbose") == (200, "ready\n")
        for path in ("/", "/ready", "/healthz", "/metrics/x", "/favicon.ico"):
            assert fetch(path) == (404, "not found; known here: /metrics, /readyz\n")


def test_samples_of_sampled_traces_link_to_them_in_openmetrics(registry: CollectorRegistry) -> None:
    sampled, other = (TraceContext(digit * 32, "1" * 16, is_sampled=digit == "a") for digit in "ab")
    metrics = Metrics(registry)
    end = End(Outcome(FinishReason.STOP), Usage(completion_tokens=5))
    for trace in (None, sampled, other):
        ended = events.RequestEnded(replace(REQUEST, trace=trace), end, MARKS)
        metrics.handle(ended)
        metrics.handle(events.AnswerClosed(ended, 0.0004))
    with serving(registry) as fetch:
        status, plain = fetch("/metrics")
        page = fetch("/metrics", Accept="application/openmetrics-text; version=1.0.0")[1]
    assert status == 200
    assert "completion_stage_seconds" in plain
    assert "trace_id" not in plain
    assert "_created" not in plain
    assert page.endswith("# EOF\n")
    assert "b" * 32 not in page
    linked = [line for line in page.splitlines() if f'# {{trace_id="{"a" * 32}"}}' in line]
    assert [line.split("{")[0] for line in linked] == ["completion_stage_seconds_bucket"] * 7 + [
        "completion_ttft_seconds_bucket"
    ]


@pytest.fixture
def page_registry() -> CollectorRegistry:
    page_registry = CollectorRegistry()
    seconds = Histogram("stage_seconds", "Time.", ["stage"], buckets=(0.1, 1.0), registry=page_registry)
    seconds.labels("queue").observe(0.05, exemplar={"trace_id": "abc"})
    Counter("requests", "Requests.", registry=page_registry).inc(3)
    Gauge("elsewhere", "A gauge with a region of its own.", ["region"], registry=page_registry).labels("moon").set(1)
    return page_registry


def test_every_sample_has_the_region_and_keeps_its_exemplar(page_registry: CollectorRegistry) -> None:
    page = LabelledRegistry(page_registry, {"region": "us-east"})
    samples = [sample for metric in page.collect() for sample in metric.samples]
    assert {sample.labels["region"] for sample in samples if sample.name != "elsewhere"} == {"us-east"}
    assert 'elsewhere{region="moon"} 1.0' in render(page)  # it keeps its own
    assert page_registry.get_sample_value("requests_total") == 3.0  # the source is as it was
    assert '# {trace_id="abc"} 0.05' in generate_openmetrics(page).decode()
    assert "requests_total 3.0" in render(LabelledRegistry(page_registry, {"region": ""}))


@pytest.mark.parametrize(
    ("names", "shown", "hidden"),
    [
        (("stage_seconds",), ("stage_seconds_bucket", "stage_seconds_sum"), ("requests_total", "elsewhere")),
        (("requests_total",), ("requests_total",), ("stage_seconds", "elsewhere")),
        (("unknown",), (), ("requests_total", "stage_seconds")),
    ],
)
def test_metrics_are_chosen_by_name(
    page_registry: CollectorRegistry, names: tuple[str, ...], shown: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    text = render(LabelledRegistry(page_registry, {}), names)
    with serving(LabelledRegistry(page_registry, {})) as fetch:
        assert fetch("/metrics?" + "&".join(f"name[]={name}" for name in names))[1] == text
    assert all(name in text for name in shown)
    assert not any(name in text for name in hidden)
