"""Decides which requests are traced: at their receipt, and at their end. Knows nothing of OpenTelemetry."""

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry, Counter, Gauge

from completion_server.core.clock import Clock
from completion_server.core.events import EndUnwritten, EndWritten, Event, RequestEnded
from completion_server.core.trace_context import ParentSpan, TraceContext
from completion_server.telemetry.tracing.spans import Attributes, RequestTrace, describe, misses_budget

_MAX_PENDING = 4096
"""Requests whose End may wait to be written; further ones are passed on without that."""


class RateLimit:
    """Allows `per_s` events a second, and as many at once, but at least one if it is above 0."""

    def __init__(self, per_s: float, clock: Clock) -> None:
        """Begin full."""
        self._per_s = per_s
        self._most = max(1.0, per_s) if per_s else 0.0
        self._left = self._most
        self._clock = clock
        self._filled_at: float | None = None

    def take(self) -> bool:
        """Count one event, and return whether it is allowed."""
        now = self._clock.now()
        passed_s = 0.0 if self._filled_at is None else now - self._filled_at
        self._left = min(self._most, self._left + passed_s * self._per_s)
        self._filled_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class HeadSampler:
    """Begins the trace of each request.

    A caller that records its own trace is followed, up to a limit, because every caller can ask for that. A caller that
    does not record its trace is followed, too. The others are sampled at random.
    """

    def __init__(
        self,
        ratio: float,
        caller_limit: RateLimit,
        *,
        seed: int | None = None,
        on_caller_limit: Callable[[], None] = lambda: None,
    ) -> None:
        """Sample the share `ratio`, 0 to 1. `seed` makes ids and choices repeatable.

        `on_caller_limit` is called for each request that is not sampled for its caller, because of the limit.
        """
        self._ratio = ratio
        self._caller_limit = caller_limit
        self._on_caller_limit = on_caller_limit
        self._random = random.Random(seed)

    def begin(self, traceparent: str, tracestate: str) -> TraceContext | None:
        """Return the trace context of a request; None if it has no caller's trace and is not sampled."""
        parent = ParentSpan.parse(traceparent, tracestate) if traceparent else None
        if parent is None:
            return self._context(None, is_sampled=True) if self._random.random() < self._ratio else None
        return self._context(parent, is_sampled=parent.is_sampled and self._follows())

    def begin_late(self) -> TraceContext:
        """Return the context of a request that is traced though it was not sampled when it was received."""
        return self._context(None, is_sampled=False)

    def _follows(self) -> bool:
        if self._caller_limit.take():
            return True
        self._on_caller_limit()
        return self._random.random() < self._ratio

    def _context(self, parent: ParentSpan | None, *, is_sampled: bool) -> TraceContext:
        trace_id = parent.trace_id if parent is not None else f"{self._random.getrandbits(128) or 1:032x}"
        return TraceContext(trace_id, f"{self._random.getrandbits(64) or 1:016x}", is_sampled, parent)


class TraceMetrics:
    """Counts traces and spans. May be used from several threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        traced = "Requests that were traced: sampled when they were received, or missed their budget."
        self._requests = Counter("completion_traced_requests", traced, ["sampled"], registry=registry)
        left_out = "Requests that were not traced because of a limit: caller_sampled_per_s or missed_budget_per_s."
        self._left_out = Counter("completion_untraced_requests", left_out, ["limit"], registry=registry)
        spans = "Spans: exported, failed (the collector did not take them) or dropped (the queue was full)."
        self._spans = Counter("completion_trace_spans", spans, ["result"], registry=registry)
        reached = "Whether the collector took the last export; 1 before the first one."
        self._is_reached = Gauge("completion_trace_collector_reached", reached, registry=registry)
        self._is_reached.set(1)
        self._of_result = {name: self._spans.labels(name) for name in ("exported", "failed", "dropped")}
        self._of_reason = {name: self._requests.labels(name) for name in ("head", "missed_budget")}
        self._of_limit = {name: self._left_out.labels(name) for name in ("caller", "missed_budget")}

    def traced(self, *, is_sampled: bool) -> None:
        """Count a request."""
        self._of_reason["head" if is_sampled else "missed_budget"].inc()

    def caller_limited(self) -> None:
        """Count a request that was not traced for its caller."""
        self._of_limit["caller"].inc()

    def missed_limited(self) -> None:
        """Count a request that missed its budget and was left out."""
        self._of_limit["missed_budget"].inc()

    def exported(self, num_spans: int, *, is_reached: bool) -> None:
        """Count the spans of one export."""
        self._of_result["exported" if is_reached else "failed"].inc(num_spans)
        self._is_reached.set(is_reached)

    def dropped(self, num_spans: int) -> None:
        """Count spans for which the queue had no place."""
        self._of_result["dropped"].inc(num_spans)


class Tracer:
    """Picks the requests that were sampled when they were received, and those that missed their budget.

    For the others its cost is a few comparisons.
    """

    def __init__(
        self,
        sampler: HeadSampler,
        missed_limit: RateLimit,
        budget_s: float,
        attributes: Attributes,
        export: Callable[[RequestTrace], None],
        *,
        on_missed_limit: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `export` for each request to export. Every one has `attributes`.

        `on_missed_limit` is called for each request that missed its budget and is left out because of the limit.
        """
        self._sampler = sampler
        self._missed_limit = missed_limit
        self._budget_s = budget_s
        self._attributes = attributes
        self._export = export
        self._on_missed_limit = on_missed_limit
        self._pending: OrderedDict[str, tuple[RequestEnded, TraceContext, bool]] = OrderedDict()
        """Requests to export, by id, whose End is not written yet."""

    def handle(self, event: Event) -> Event:
        """Take an event and return it. A late request's event carries the trace that was chosen at its end."""
        if isinstance(event, RequestEnded):
            return self._ended(event)
        if self._pending:
            if isinstance(event, EndWritten):
                self._pass_on(event.request.id, event.seconds)
            elif isinstance(event, EndUnwritten):
                self._pass_on(event.request.id, None)
        return event

    def flush(self) -> None:
        """Pass on all requests whose End is not written yet."""
        while self._pending:
            self._pass_on(next(iter(self._pending)), None)

    def _ended(self, event: RequestEnded) -> RequestEnded:
        context = event.request.trace
        is_missed = misses_budget(event.request, event.end.outcome, event.marks, self._budget_s)
        if context is None or not context.is_sampled:
            if not is_missed:
                return event
            if not self._missed_limit.take():
                self._on_missed_limit()
                return event
            context = context or self._sampler.begin_late()
            event = replace(event, late_trace=context)
        self._pending[event.request.id] = event, context, is_missed
        if len(self._pending) > _MAX_PENDING:
            self._pass_on(next(iter(self._pending)), None)
        return event

    def _pass_on(self, request_id: str, stream_s: float | None) -> None:
        """Describe a request and pass it on; ignored if it is not to be exported."""
        found = self._pending.pop(request_id, None)
        if found is None:
            return
        event, context, is_missed = found
        ended = event.marks.ended
        written = None if stream_s is None or ended is None else ended + stream_s
        self._export(describe(event, context, self._attributes, written=written, missed_budget=is_missed))
