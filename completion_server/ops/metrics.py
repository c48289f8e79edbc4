"""Prometheus metrics of requests and of the engine."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from completion_server.auth.claims import Result
from completion_server.core import events
from completion_server.core.errors import Code, is_servers_fault
from completion_server.core.outcome import CacheLevel, FinishReason, Reaction, ShedReason, Usage
from completion_server.core.request import Trigger
from completion_server.core.trace_context import TraceContext
from completion_server.ops.families import BUCKETS_S, Histogram, Labels, Values
from completion_server.ops.quality import (
    NUM_USER_GROUPS,
    SloResult,
    exported_trace,
    is_whole_and_wanted,
    slo_result,
    ttft_range,
    user_group,
)
from completion_server.ops.tenants import TenantMetrics

_AGE_BUCKETS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0)
"""Buckets for the ages of completions, which live for seconds or minutes."""
_STAGES = ("receive", "admission", "queue", "tokenise", "prefill", "decode_token", "stream", "total")
_TOKEN_KINDS = ("prompt", "cached_prompt", "completion", "drafted", "accepted_draft")
_TRIGGERS = {trigger: trigger.name.lower() for trigger in Trigger}
_REACTIONS = tuple(reaction.value for reaction in Reaction)
_GROUPED = ("answered", "with_text", *_REACTIONS)
_IN_FULL = "Counts level 2 in full also if its generation had begun, and requests superseded after their answer."
_COUNTERS = {
    "requests": ("Ended requests.", "outcome", "trigger", "shed_reason"),
    "tokens": ("Tokens, by kind.", "kind"),
    "refused_requests": ("Requests not admitted, by status code.", "code"),
    "slo_requests": (
        "Requests that somebody waited for, by result; all but in_time count against the objective.",
        "result",
    ),
    "feedback": ("Feedback reports of editors, by kind.", "kind"),
    "accepted_characters": ("Characters of completions that users accepted.",),
    "quality": (
        f"Completions by their users' reaction ({', '.join(_REACTIONS)}), the range of their TTFT in seconds, the K "
        "active at their end (empty for cached ones), the cache level and the target model.",
        *("event", "ttft", "k", "cache", "model"),
    ),
    "user_groups": (
        f"Completions by what became of them ({', '.join(_GROUPED)}) and by a group of users, drawn by their names.",
        *("event", "group"),
    ),
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
    "cache_hits": ("Requests answered from the completion cache, by level.", "level"),
    "cache_misses": ("Lookups in the completion cache without an answer, by level and reason.", "level", "reason"),
    "cache_saved_tokens": (
        f"Tokens that cached completions had cost, less those of typed text, by kind. {_IN_FULL}",
        "kind",
    ),
    "cache_saved_engine_seconds": (
        f"Seconds of prefill and decode that cached completions had taken, less those of typed text. {_IN_FULL}",
    ),
    "authentications": ("Checks of credentials, by kind and result.", "kind", "result"),
}
"""Help texts and labels of counters, by name."""
_GAUGES = {
    "ttft_budget_seconds": ("Time in which the first token of a request must come.",),
    "credential_source_failed": (
        "1 while keys or revocations can't be read or fetched, or are out of date, by configuration key.",
        "source",
    ),
}
"""Help texts and labels of gauges, by name."""
_HISTOGRAMS = {
    "stage": (
        "Time in each stage: receive, admission, queue, tokenise, prefill, decode_token (per token), stream, total.",
        "stage",
    ),
    "ttft": ("From a request's receipt to its first token, of answers with text.", "trigger"),
    "loop_lag": ("Lateness of the event loop: all work in it waits as long.",),
    "cache_hit_age": ("Age of the cached completions that answered requests.", "level"),
    "cache_lookup": ("Time of lookups in Redis, failed ones included.",),
}
"""Help texts and labels of histograms of seconds, by name."""
_CREDENTIALS = ("key", "token", "certificate")
_CREDENTIAL_SOURCES = ("auth.keys_file", "auth.jwks_file", "auth.issuer", "auth.crl_file")
_AUDITED = (events.AuthenticationRefused, events.SessionOpened, events.SessionClosed, events.AdminChanged)
"""Events for the audit log alone."""
_WASTED = frozenset({FinishReason.SUPERSEDED, FinishReason.SHED, FinishReason.CANCELLED, FinishReason.DEADLINE})
_MAX_EVENTS = 100
"""Events that may wait to be counted. The loop's lag alone is nearly as many in a second."""
_NUM_TTFTS = 128


class Metrics(Collector):
    """Counts and times requests from events: many at once, or before the numbers are read, not while a request runs."""

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
        self._budget_s = budget_s
        self._model = model
        self._values = {name: Values("counter", name, *texts) for name, texts in _COUNTERS.items()}
        self._values |= {name: Values("gauge", name, *texts) for name, texts in _GAUGES.items()}
        self._values["ttft_budget_seconds"][()] = budget_s
        self._seconds = {
            name: Histogram(name, *texts, buckets_s=_AGE_BUCKETS_S if name == "cache_hit_age" else BUCKETS_S)
            for name, texts in _HISTOGRAMS.items()
        }
        self._by_tenant = TenantMetrics(tenants)
        self._create_series(is_authenticating=is_authenticating)
        self._ttfts_s: deque[float] = deque(maxlen=_NUM_TTFTS)
        self._handlers = self._make_handlers()
        self._events: deque[events.Event] = deque()
        """Those that are not counted yet."""
        self._lock = threading.Lock()
        """Held to count events and to read numbers: a scrape does both in a thread of its own."""
        registry.register(self)

    def _create_series(self, *, is_authenticating: bool) -> None:
        values, seconds = self._values, self._seconds
        values["requests"].create(
            (reason.value, trigger, shed_reason)
            for trigger in _TRIGGERS.values()
            for reason in FinishReason
            for shed_reason in ("", *(each.value for each in ShedReason if reason is FinishReason.SHED))
        )
        values["tokens"].create((kind,) for kind in _TOKEN_KINDS)
        values["refused_requests"].create((code.name.lower(),) for code in Code)
        values["slo_requests"].create((result.value,) for result in SloResult)
        values["user_groups"].create(product(_GROUPED, map(str, range(NUM_USER_GROUPS))))
        values["cache_hits"].create((level.value,) for level in (CacheLevel.LOCAL, CacheLevel.SHARED))
        values["cache_misses"].create([(CacheLevel.LOCAL.value, events.MissReason.ABSENT.value)])
        if is_authenticating:
            values["authentications"].create([*product(_CREDENTIALS, Result), ("none", Result.MISSING)])
            values["credential_source_failed"].create((source,) for source in _CREDENTIAL_SOURCES)
        seconds["stage"].create((stage,) for stage in _STAGES)
        seconds["ttft"].create((trigger,) for trigger in _TRIGGERS.values())

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        count, seconds, failed = self._count, self._seconds, self._values["credential_source_failed"]
        return {
            events.RequestEnded: self._request_ended,
            events.RequestRefused: self._request_refused,
            events.AnswerClosed: self._answer_closed,
            events.GenerationReattached: self._generation_reattached,
            events.GenerationJoined: lambda _event: count("generations_joined"),
            events.GenerationDiverged: self._generation_diverged,
            events.LoopLagged: lambda event: seconds["loop_lag"].observe(event.seconds),
            events.EngineStalled: lambda _event: count("engine_stalls"),
            events.CacheHit: self._cache_hit,
            events.CacheMiss: lambda event: count("cache_misses", event.level.value, event.reason.value),
            events.CacheReplied: lambda event: seconds["cache_lookup"].observe(event.seconds),
            events.CredentialsChecked: lambda event: count("authentications", event.kind, event.result),
            events.CredentialSourceRead: lambda event: failed.update({(event.source,): event.has_failed}),
            events.FeedbackReported: self._feedback_reported,
            events.FeedbackRefused: lambda _event: count("feedback", "refused"),
            **dict.fromkeys(_AUDITED, lambda _event: None),
        }

    def handle(self, event: events.Event) -> None:
        """Keep an event until it is counted."""
        self._events.append(event)
        if len(self._events) >= _MAX_EVENTS and self._lock.acquire(blocking=False):  # else a scrape counts them
            try:
                self._count_events()
            finally:
                self._lock.release()

    def collect(self) -> list[Metric]:
        """Return all metrics. Safe in any thread."""
        with self._lock:
            self._count_events()
            families = (*self._values.values(), *self._seconds.values(), *self._by_tenant.families)
            return [family.collect() for family in families]

    def counts(self, name: str) -> dict[Labels, float]:
        """Return the present values of a counter, by labels. `name` is without "completion_"."""
        with self._lock:
            self._count_events()
            return dict(self._values[name])

    def num_ended(self) -> dict[str, int]:
        """Return the number of ended requests by outcome."""
        ended = Counter[str]()
        for (outcome, *_), number in self.counts("requests").items():
            ended[outcome] += int(number)
        return +ended  # without zeros

    def median_ttft_s(self) -> float | None:
        """Return the median of the last times to the first token; None before the first one."""
        with self._lock:
            self._count_events()
            return median(self._ttfts_s) if self._ttfts_s else None

    def _count_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            self._handlers[type(event)](event)

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._values[name][labels] += by

    def _request_ended(self, event: events.RequestEnded) -> None:
        request, outcome, usage = event.request, event.end.outcome, event.end.usage
        trigger, shed_reason = _TRIGGERS[request.trigger], outcome.shed_reason
        self._count("requests", outcome.reason.value, trigger, shed_reason.value if shed_reason else "")
        if not usage.is_shared:
            self._count_tokens(outcome.reason, usage)
        trace = exported_trace(event, self._budget_s)
        self._time_stages(event, trace)
        if (ttft_s := event.ttft_s) is not None:
            self._seconds["ttft"].observe(ttft_s, (trigger,), trace)
            self._ttfts_s.append(ttft_s)
        if (result := slo_result(event, self._budget_s)) is not None:
            self._count("slo_requests", result.value)
        if is_whole_and_wanted(event):
            group = user_group(request.caller.owner)
            self._count("user_groups", "answered", group)
            self._count("user_groups", "with_text", group, by=event.has_text)
        self._by_tenant.ended(event)

    def _request_refused(self, event: events.RequestRefused) -> None:
        self._count("refused_requests", event.error.code.name.lower())
        if is_servers_fault(event.error):
            self._count("slo_requests", SloResult.REFUSED.value)

    def _answer_closed(self, event: events.AnswerClosed) -> None:
        if event.stream_s is not None:
            self._seconds["stage"].observe(event.stream_s, ("stream",), exported_trace(event.ended, self._budget_s))

    def _count_tokens(self, reason: FinishReason, usage: Usage) -> None:
        if usage.completion_tokens:  # without output, the share that the prefix cache had is not known
            self._count("tokens", "prompt", by=usage.prompt_tokens)
            self._count("tokens", "cached_prompt", by=usage.cached_prompt_tokens)
            self._count("tokens", "completion", by=usage.completion_tokens)
            self._count("tokens", "drafted", by=usage.drafted_tokens)
            self._count("tokens", "accepted_draft", by=usage.accepted_draft_tokens)
        if reason in _WASTED:
            self._count("wasted_tokens", reason.value, by=usage.completion_tokens)

    def _time_stages(self, event: events.RequestEnded, trace: TraceContext | None) -> None:
        marks, stages = event.marks, self._seconds["stage"]
        for stage, begin, end in (
            ("receive", event.request.receive_began_at, event.request.received_at),
            ("admission", marks.received, marks.admitted),
            ("queue", marks.admitted, marks.started),
            ("tokenise", marks.started, marks.prompted),
            ("prefill", marks.prompted, marks.first_output),
            ("total", marks.received, marks.ended),
        ):
            if begin is not None and end is not None:
                stages.observe(end - begin, (stage,), trace)
        num_decoded = event.end.usage.completion_tokens - marks.tokens_at_first_output
        if marks.first_output is not None and marks.last_output is not None and num_decoded > 0:
            stages.observe((marks.last_output - marks.first_output) / num_decoded, ("decode_token",), trace)

    def _generation_reattached(self, event: events.GenerationReattached) -> None:
        self._count("generations_reattached")
        self._count("reattached_tokens", by=event.num_tokens)

    def _generation_diverged(self, event: events.GenerationDiverged) -> None:
        self._count("generations_diverged")
        self._count("wasted_tokens", "diverged", by=event.num_tokens)

    def _feedback_reported(self, event: events.FeedbackReported) -> None:
        self._count("feedback", event.feedback.kind)
        self._count("accepted_characters", by=event.feedback.accepted_characters)
        answer, k = event.answer, event.answer.num_speculative_tokens
        served = ttft_range(answer.ttft_s), "" if k is None else str(k), answer.cache_level.value, self._model
        for reaction in Reaction:  # all exist from the first one on
            self._count("quality", reaction.value, *served, by=reaction in event.reactions)
        if event.caller is not None:
            for reaction in event.reactions:
                self._count("user_groups", reaction.value, user_group(event.caller.owner))

    def _cache_hit(self, event: events.CacheHit) -> None:
        level = event.level.value
        self._count("cache_hits", level)
        self._seconds["cache_hit_age"].observe(event.age_s, (level,))
        self._count("cache_saved_tokens", "prompt", by=event.num_prompt_tokens)
        self._count("cache_saved_tokens", "completion", by=event.num_completion_tokens)
        self._count("cache_saved_engine_seconds", by=event.engine_s)
