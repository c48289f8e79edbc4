"""Prometheus metrics of requests and of the engine."""

from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from completion_server.auth.claims import Result
from completion_server.core import events
from completion_server.core.errors import Code
from completion_server.core.events import Marks
from completion_server.core.outcome import CacheLevel, FinishReason, ShedReason, Usage
from completion_server.core.request import Request, Trigger
from completion_server.core.trace_context import TraceContext
from completion_server.ops.quality import ObjectiveMetrics, QualityMetrics, UserGroupMetrics
from completion_server.ops.tenants import TenantMetrics

BUCKETS_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1,
    0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0,
)  # fmt: skip
"""Buckets from 1 ms to 2 s, densest around 200 ms, after which an answer has no value."""

_AGE_BUCKETS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0)
"""Buckets for the ages of completions, which live for seconds or minutes."""
_STAGES = ("receive", "admission", "queue", "tokenise", "prefill", "decode_token", "stream", "total")
_TOKEN_KINDS = ("prompt", "cached_prompt", "completion", "drafted", "accepted_draft")
_COUNTERS = {
    "requests": ("Ended requests.", "outcome", "trigger", "shed_reason"),
    "tokens": ("Tokens, by kind.", "kind"),
    "refused_requests": ("Requests not admitted, by status code.", "code"),
    "feedback": ("Feedback reports of editors, by kind.", "kind"),
    "accepted_characters": ("Characters of completions that users accepted.",),
    "wasted_tokens": (
        "Tokens computed for requests that were superseded, shed, cancelled, late or diverged, by outcome.",
        "outcome",
    ),
    "generations_reattached": (
        "Generations that a newer request reattached to, because its user typed the generated text.",
    ),
    "reattached_tokens": ("Tokens that newer requests reused by reattaching.",),
    "generations_joined": ("Running generations that a further request joined, because it asked for the same answer.",),
    "generations_diverged": ("Reattached generations whose further text differed from the typed text.",),
    "engine_stalls": ("Pauses of the engine that are no samples of its latency.",),
}
"""Help texts and labels of counters, by name."""
_HISTOGRAMS = {
    "stage": (
        "Time in each stage: receive, admission, queue, tokenise, prefill, decode_token (per token), stream, total.",
        "stage",
    ),
    "ttft": ("From a request's receipt to its first token, of answers with text.", "trigger"),
    "loop_lag": ("Lateness of the event loop: all work in it waits as long.",),
}
"""Help texts and labels of histograms of seconds, by name."""
_CREDENTIALS = ("key", "token", "certificate")
_CREDENTIAL_SOURCES = ("auth.keys_file", "auth.jwks_file", "auth.issuer", "auth.crl_file")
_AUDITED = (events.AuthenticationRefused, events.SessionOpened, events.SessionClosed, events.AdminChanged)
"""Events for the audit log alone."""
_WASTED = frozenset({FinishReason.SUPERSEDED, FinishReason.SHED, FinishReason.CANCELLED, FinishReason.DEADLINE})


class _Registry:
    """Creates metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"completion_{name}", help_text, labels, registry=self._registry)

    def histogram(self, name: str, help_text: str, *labels: str, buckets: tuple[float, ...] = BUCKETS_S) -> Histogram:
        return Histogram(f"completion_{name}", help_text, labels, buckets=buckets, registry=self._registry)


class Metrics:
    """Counts and times requests from events."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        budget_s: float = 0.2,
        model: str = "",
        tenants: Sequence[str] = (),
        is_authenticating: bool = False,
    ) -> None:
        """Register the metrics; those by tenant for `tenants`.

        A first token has a value within `budget_s`; `model` names the target model.
        """
        make = _Registry(registry)
        self._objective = ObjectiveMetrics(registry, budget_s)
        self._quality = QualityMetrics(registry, model)
        self._user_groups = UserGroupMetrics(registry)
        self._counters = {name: make.counter(name, *texts) for name, texts in _COUNTERS.items()}
        self._seconds = {name: make.histogram(f"{name}_seconds", *texts) for name, texts in _HISTOGRAMS.items()}
        self.cache = CacheMetrics(make)
        self._by_tenant = TenantMetrics(tenants, registry)
        self._authentication = AuthenticationMetrics(registry, is_on=is_authenticating)
        # Looking up a series by its labels costs more than counting, and happens twenty times for each request.
        self._stage = {stage: self._seconds["stage"].labels(stage) for stage in _STAGES}
        self._ttft_of = {trigger: self._seconds["ttft"].labels(trigger.name.lower()) for trigger in Trigger}
        self._token = {kind: self._counters["tokens"].labels(kind) for kind in _TOKEN_KINDS}
        # All series exist from the start: Prometheus takes no first increment from a series that it did not know.
        self._requests_of = {
            (trigger, reason, shed_reason): self._counters["requests"].labels(
                reason.value, trigger.name.lower(), shed_reason.value if shed_reason else ""
            )
            for trigger in Trigger
            for reason in FinishReason
            for shed_reason in ((None, *ShedReason) if reason is FinishReason.SHED else (None,))
        }
        for code in Code:
            self._counters["refused_requests"].labels(code.name.lower())
        self.ended: dict[str, int] = {}
        """Ended requests by outcome, for the status call."""
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            events.RequestEnded: self._request_ended,
            events.RequestRefused: self._request_refused,
            events.EndWritten: lambda event: self._stage["stream"].observe(event.seconds, _exemplar(event.request)),
            events.EndUnwritten: lambda _event: None,
            events.GenerationReattached: self._generation_reattached,
            events.GenerationJoined: lambda _event: self._counters["generations_joined"].inc(),
            events.GenerationDiverged: self._generation_diverged,
            events.LoopLagged: lambda event: self._seconds["loop_lag"].observe(event.seconds),
            events.EngineStalled: lambda _event: self._counters["engine_stalls"].inc(),
            events.CacheHit: self.cache.hit,
            events.CacheMiss: self.cache.missed,
            events.CacheReplied: self.cache.replied,
            events.CredentialsChecked: self._authentication.checked,
            events.CredentialSourceRead: self._authentication.source_read,
            events.FeedbackReported: self._feedback_reported,
            events.FeedbackRefused: lambda _event: self._counters["feedback"].labels("refused").inc(),
            **dict.fromkeys(_AUDITED, lambda _event: None),
        }

    def handle(self, event: events.Event) -> None:
        """Update the metrics with an event."""
        self._handlers[type(event)](event)

    def _request_ended(self, event: events.RequestEnded) -> None:
        request, end, marks = event.request, event.end, event.marks
        reason, usage = end.outcome.reason, end.usage
        self.ended[reason.value] = self.ended.get(reason.value, 0) + 1
        self._requests_of[request.trigger, reason, end.outcome.shed_reason].inc()
        if not usage.is_shared:
            self._count_tokens(reason, usage)
        exemplar = _exemplar(request, event.late_trace)
        if request.receive_began_at is not None:
            self._stage["receive"].observe(request.received_at - request.receive_began_at, exemplar)
        self._time_stages(marks, usage.completion_tokens, exemplar)
        if event.ttft_s is not None:
            self._ttft_of[request.trigger].observe(event.ttft_s, exemplar)
        self._objective.ended(event)
        self._user_groups.ended(event)
        self._by_tenant.handle(event)

    def _request_refused(self, event: events.RequestRefused) -> None:
        self._counters["refused_requests"].labels(event.error.code.name.lower()).inc()
        self._objective.refused(event)

    def _count_tokens(self, reason: FinishReason, usage: Usage) -> None:
        if usage.counted_prompt_tokens:
            self._token["prompt"].inc(usage.counted_prompt_tokens)
            self._token["cached_prompt"].inc(usage.cached_prompt_tokens)
        if usage.completion_tokens:
            self._token["completion"].inc(usage.completion_tokens)
            self._token["drafted"].inc(usage.drafted_tokens)
            self._token["accepted_draft"].inc(usage.accepted_draft_tokens)
        if reason in _WASTED:
            self._counters["wasted_tokens"].labels(reason.value).inc(usage.completion_tokens)

    def _time_stages(self, marks: Marks, num_tokens: int, exemplar: dict[str, str] | None) -> None:
        for stage, begin, end in (
            ("admission", marks.received, marks.admitted),
            ("queue", marks.admitted, marks.started),
            ("tokenise", marks.started, marks.prompted),
            ("prefill", marks.prompted, marks.first_output),
            ("total", marks.received, marks.ended),
        ):
            if begin is not None and end is not None:
                self._stage[stage].observe(end - begin, exemplar)
        num_decoded = num_tokens - marks.tokens_at_first_output
        if marks.first_output is not None and marks.last_output is not None and num_decoded > 0:
            seconds = (marks.last_output - marks.first_output) / num_decoded
            self._stage["decode_token"].observe(seconds, exemplar)

    def _generation_reattached(self, event: events.GenerationReattached) -> None:
        self._counters["generations_reattached"].inc()
        self._counters["reattached_tokens"].inc(event.num_tokens)

    def _generation_diverged(self, event: events.GenerationDiverged) -> None:
        self._counters["generations_diverged"].inc()
        self._counters["wasted_tokens"].labels("diverged").inc(event.num_tokens)

    def _feedback_reported(self, event: events.FeedbackReported) -> None:
        self._counters["feedback"].labels(event.feedback.kind).inc()
        self._counters["accepted_characters"].inc(event.feedback.accepted_characters)
        self._quality.reported(event)
        self._user_groups.reported(event)


def _exemplar(request: Request, late_trace: TraceContext | None = None) -> dict[str, str] | None:
    """Return the label that links a sample to a request's trace; None unless the trace is chosen for export.

    Only pages in the OpenMetrics format show it.
    """
    if late_trace is not None:
        return {"trace_id": late_trace.trace_id}
    trace = request.trace
    return {"trace_id": trace.trace_id} if trace is not None and trace.is_sampled else None


class CacheMetrics:
    """Metrics of the completion cache."""

    def __init__(self, make: _Registry) -> None:
        """Register the metrics."""
        self.num_hits = dict.fromkeys((CacheLevel.LOCAL, CacheLevel.SHARED), 0)
        """Requests answered from each level."""
        self.num_missed = 0
        """Lookups that the process's memory did not answer."""
        self._hits = make.counter("cache_hits", "Requests answered from the completion cache, by level.", "level")
        missed = "Lookups in the completion cache without an answer, by level and reason."
        self._misses = make.counter("cache_misses", missed, "level", "reason")
        for level in self.num_hits:
            self._hits.labels(level.value)
        self._misses.labels(CacheLevel.LOCAL.value, events.MissReason.ABSENT.value)
        age = "Age of the cached completions that answered requests."
        self._age = make.histogram("cache_hit_age_seconds", age, "level", buckets=_AGE_BUCKETS_S)
        counted = "Counts level 2 in full also if its generation had begun, and requests superseded after their answer."
        saved = f"Tokens that cached completions had cost, less those of typed text, by kind. {counted}"
        self._saved_tokens = make.counter("cache_saved_tokens", saved, "kind")
        saved = f"Seconds of prefill and decode that cached completions had taken, less those of typed text. {counted}"
        self._saved_s = make.counter("cache_saved_engine_seconds", saved)
        self._lookup_s = make.histogram("cache_lookup_seconds", "Time of lookups in Redis, failed ones included.")

    def hit(self, event: events.CacheHit) -> None:
        """Count a hit."""
        self.num_hits[event.level] += 1
        level = event.level.value
        self._hits.labels(level).inc()
        self._age.labels(level).observe(event.age_s)
        self._saved_tokens.labels("prompt").inc(event.num_prompt_tokens)
        self._saved_tokens.labels("completion").inc(event.num_completion_tokens)
        self._saved_s.inc(event.engine_s)

    def missed(self, event: events.CacheMiss) -> None:
        """Count a miss."""
        self.num_missed += event.level is CacheLevel.LOCAL
        self._misses.labels(event.level.value, event.reason.value).inc()

    def replied(self, event: events.CacheReplied) -> None:
        """Time a lookup in Redis."""
        self._lookup_s.observe(event.seconds)


class AuthenticationMetrics:
    """Counts checks of credentials, and shows whether what they are checked against can be read."""

    def __init__(self, registry: CollectorRegistry, *, is_on: bool) -> None:
        """Register the metrics; their series exist from the start if authentication is on."""
        checked = "Checks of credentials, by kind and result."
        self._checked = Counter("completion_authentications", checked, ("kind", "result"), registry=registry)
        failed = "1 while keys or revocations can't be read or fetched, or are out of date, by configuration key."
        self._failed = Gauge("completion_credential_source_failed", failed, ("source",), registry=registry)
        self._checked_of: dict[tuple[str, str], Counter] = {}
        if is_on:
            for kind in _CREDENTIALS:
                for result in Result:
                    self._series(kind, result.value)
            self._series("none", Result.MISSING.value)
            for source in _CREDENTIAL_SOURCES:
                self._failed.labels(source)

    def checked(self, event: events.CredentialsChecked) -> None:
        """Count a check."""
        self._series(event.kind, event.result).inc()

    def source_read(self, event: events.CredentialSourceRead) -> None:
        """Note whether a source can be used."""
        self._failed.labels(event.source).set(event.has_failed)

    def _series(self, kind: str, result: str) -> Counter:
        series = self._checked_of.get((kind, result))
        if series is None:
            series = self._checked_of[kind, result] = self._checked.labels(kind, result)
        return series
