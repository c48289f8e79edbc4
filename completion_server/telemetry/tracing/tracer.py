"""Hears events, and passes on the requests whose traces are to be exported. Knows nothing of OpenTelemetry."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from completion_server.core.events import EndUnwritten, EndWritten, Event, RequestEnded
from completion_server.core.trace_context import TraceContext
from completion_server.telemetry.tracing.sampling import HeadSampler, RateLimit
from completion_server.telemetry.tracing.spans import Attributes, RequestTrace, describe, misses_budget

_MAX_PENDING = 4096
"""Requests whose End may wait to be written; further ones are passed on without that."""


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
