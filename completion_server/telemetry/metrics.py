"""Prometheus metrics of requests and of the engine."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from completion_server.core import events
from completion_server.core.events import Marks
from completion_server.core.outcome import FinishReason, ShedReason
from completion_server.core.request import Trigger

BUCKETS_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1,
    0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0,
)  # fmt: skip
"""Buckets from 1 ms to 2 s, densest around 200 ms, after which an answer has no value."""

_STAGES = ("admission", "queue", "tokenise", "prefill", "decode_token", "stream", "total")
_TOKEN_KINDS = ("prompt", "cached_prompt", "completion", "drafted", "accepted_draft")
_WASTED = frozenset({FinishReason.SUPERSEDED, FinishReason.SHED, FinishReason.CANCELLED, FinishReason.DEADLINE})


class _Registry:
    """Creates metrics in one registry; every histogram has the same buckets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"completion_{name}", help_text, labels, registry=self._registry)

    def histogram(self, name: str, help_text: str, *labels: str) -> Histogram:
        return Histogram(f"completion_{name}", help_text, labels, buckets=BUCKETS_S, registry=self._registry)


class Metrics:
    """Counts and times requests from events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        make = _Registry(registry)
        self._requests = make.counter("requests", "Ended requests.", "outcome", "trigger", "shed_reason")
        stages = "admission, queue, tokenise, prefill, decode_token (per token), stream, total"
        self._stages = make.histogram("stage_seconds", f"Time in each stage: {stages}.", "stage")
        self._ttft = make.histogram("ttft_seconds", "From a request's receipt to its first token.", "trigger")
        self._tokens = make.counter("tokens", "Tokens, by kind.", "kind")
        self._refused = make.counter("refused_requests", "Requests not admitted, by status code.", "code")
        self._feedback = make.counter("feedback", "Feedback reports of editors, by kind.", "kind")
        self._accepted = make.counter("accepted_characters", "Characters of completions that users accepted.")
        wasted = "Tokens computed for requests that were superseded, shed, cancelled, late or diverged, by outcome."
        self._wasted = make.counter("wasted_tokens", wasted, "outcome")
        reattached = "Generations that a newer request reattached to, because its user typed the generated text."
        self._reattached = make.counter("generations_reattached", reattached)
        self._saved = make.counter("reattached_tokens", "Tokens that newer requests reused by reattaching.")
        diverged = "Reattached generations whose further text differed from the typed text."
        self._diverged = make.counter("generations_diverged", diverged)
        self._aborting = make.histogram("abort_seconds", "From the abort of a running request until its slot is free.")
        self._lag = make.histogram("loop_lag_seconds", "Lateness of the event loop: all work in it waits as long.")
        # Looking up a series by its labels costs more than counting, and happens twenty times for each request.
        self._stage = {stage: self._stages.labels(stage) for stage in _STAGES}
        self._ttft_of = {trigger: self._ttft.labels(trigger.name.lower()) for trigger in Trigger}
        self._token = {kind: self._tokens.labels(kind) for kind in _TOKEN_KINDS}
        self._requests_of: dict[tuple[Trigger, FinishReason, ShedReason | None], Counter] = {}
        self.ended: dict[str, int] = {}
        """Ended requests by outcome, for the status call."""
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            events.RequestEnded: self._request_ended,
            events.RequestRefused: lambda event: self._refused.labels(event.code.name.lower()).inc(),
            events.EndWritten: lambda event: self._stage["stream"].observe(event.seconds),
            events.GenerationReattached: self._generation_reattached,
            events.GenerationDiverged: self._generation_diverged,
            events.GenerationAborted: lambda event: self._aborting.observe(event.seconds),
            events.LoopLagged: lambda event: self._lag.observe(event.seconds),
            events.FeedbackReported: self._feedback_reported,
            events.FeedbackRefused: lambda _event: self._feedback.labels("refused").inc(),
        }

    def handle(self, event: events.Event) -> None:
        """Update the metrics with an event."""
        self._handlers[type(event)](event)

    def _request_ended(self, event: events.RequestEnded) -> None:
        request, end, marks = event.request, event.end, event.marks
        reason, usage = end.outcome.reason, end.usage
        self.ended[reason.value] = self.ended.get(reason.value, 0) + 1
        self._count_request(request.trigger, reason, end.outcome.shed_reason)
        if usage.prompt_tokens:
            self._token["prompt"].inc(usage.prompt_tokens)
            self._token["cached_prompt"].inc(usage.cached_prompt_tokens)
        if usage.completion_tokens:
            self._token["completion"].inc(usage.completion_tokens)
            self._token["drafted"].inc(usage.drafted_tokens)
            self._token["accepted_draft"].inc(usage.accepted_draft_tokens)
        if reason in _WASTED:
            self._wasted.labels(reason.value).inc(usage.completion_tokens)
        self._time_stages(marks, usage.completion_tokens)
        if marks.first_output is not None:
            self._ttft_of[request.trigger].observe(marks.first_output - marks.received)

    def _count_request(self, trigger: Trigger, reason: FinishReason, shed_reason: ShedReason | None) -> None:
        key = trigger, reason, shed_reason
        counter = self._requests_of.get(key)
        if counter is None:
            shed = shed_reason.value if shed_reason else ""
            counter = self._requests_of[key] = self._requests.labels(reason.value, trigger.name.lower(), shed)
        counter.inc()

    def _time_stages(self, marks: Marks, num_tokens: int) -> None:
        for stage, begin, end in (
            ("admission", marks.received, marks.admitted),
            ("queue", marks.admitted, marks.started),
            ("tokenise", marks.started, marks.prompted),
            ("prefill", marks.prompted, marks.first_output),
            ("total", marks.received, marks.ended),
        ):
            if begin is not None and end is not None:
                self._stage[stage].observe(end - begin)
        num_decoded = num_tokens - marks.tokens_at_first_output
        if marks.first_output is not None and marks.last_output is not None and num_decoded > 0:
            self._stage["decode_token"].observe((marks.last_output - marks.first_output) / num_decoded)

    def _generation_reattached(self, event: events.GenerationReattached) -> None:
        self._reattached.inc()
        self._saved.inc(event.num_tokens)

    def _generation_diverged(self, event: events.GenerationDiverged) -> None:
        self._diverged.inc()
        self._wasted.labels("diverged").inc(event.num_tokens)

    def _feedback_reported(self, event: events.FeedbackReported) -> None:
        self._feedback.labels(event.feedback.kind).inc()
        self._accepted.inc(event.feedback.accepted_characters)


_HELP = {
    "slots": "Requests that may be in the engine now; the server adapts their number to the engine's load.",
    "num_speculative_tokens": "Draft tokens (K) of a step with as many generations as run now.",
}
"""Help texts of gauges whose names don't explain them."""


class Snapshot(Collector):
    """Reads the state of the parts when Prometheus scrapes, so that there are no copies to keep up to date."""

    def __init__(self, gauges: dict[str, Callable[[], float]], counters: dict[str, Callable[[], float]]) -> None:
        """Read `gauges` and `counters`, by metric name."""
        self._gauges = gauges
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        for name, read in self._gauges.items():
            help_text = _HELP.get(name) or name.replace("_", " ").capitalize() + "."
            yield GaugeMetricFamily(f"completion_{name}", help_text, value=read())
        for name, read in self._counters.items():
            yield CounterMetricFamily(f"completion_{name}", name.replace("_", " ").capitalize() + ".", value=read())
