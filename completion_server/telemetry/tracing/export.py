"""Makes spans with OpenTelemetry's SDK and exports them over OTLP from a thread of their own.

Only this module and `collector` import OpenTelemetry. Nothing here waits on the event loop: a span goes into a bounded
queue, and is dropped and counted if that is full.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from completion_server.core.clock import Clock
from completion_server.core.errors import ConfigError
from completion_server.core.trace_context import TraceContext
from completion_server.telemetry.tracing.collector import WatchedExporter, make_exporter
from completion_server.telemetry.tracing.settings import TraceSettings
from completion_server.telemetry.tracing.spans import RequestTrace, Span
from completion_server.telemetry.tracing.tracer import TraceMetrics

_SCOPE = "completion_server"
_NS_PER_S = 1_000_000_000
_MAX_BATCH = 512
"""Spans of one export."""
_API_LOGGER = "opentelemetry.trace"


class OtlpExport:
    """Exports the traces of requests, and the spans that libraries in this process make of sampled requests."""

    def __init__(
        self, settings: TraceSettings, resource: dict[str, str], clock: Clock, metrics: TraceMetrics, version: str
    ) -> None:
        """Start the thread; it connects with the first export.

        Raises:
            ConfigError: a file of the settings can't be used.

        """
        logging.getLogger(_API_LOGGER).setLevel(logging.ERROR)  # its warnings quote callers' headers
        self._clock = clock
        self._metrics = metrics
        self._timeout_s = settings.timeout_s
        self._ids = RandomIdGenerator()
        self._exporter = WatchedExporter(make_exporter(settings), settings.endpoint, metrics)
        self._processor = _BoundedProcessor(self._exporter, settings, metrics)
        self._resource = Resource.create(resource)
        self._scope = InstrumentationScope(_SCOPE, version)

    def share(self) -> None:
        """Make libraries in this process export their spans of sampled requests in the same way; vLLM is one.

        Only the first one in a process can do this: OpenTelemetry keeps one provider for each process.

        Raises:
            ConfigError: a limit of spans in the environment is not a whole number.

        """
        try:
            limits = SpanLimits()
        except ValueError as error:
            msg = f"traces.endpoint: {error}, which OpenTelemetry reads from the environment; unset it"
            raise ConfigError(msg) from error
        # The sampler keeps spans out that are in no request's trace, such as those of vLLM's start.
        sampler = ParentBased(ALWAYS_OFF)
        provider = TracerProvider(sampler, self._resource, shutdown_on_exit=False, span_limits=limits)
        provider.add_span_processor(self._processor)
        trace.set_tracer_provider(provider)

    def export(self, request: RequestTrace) -> None:
        """Make the spans of a request. Never waits."""
        self._metrics.traced(is_sampled=request.context.is_sampled)
        # An instant of both clocks for all spans, so that their durations are exact.
        offset_ns = time.time_ns() - round(self._clock.now() * _NS_PER_S)

        def at(clock_s: float) -> int:
            return offset_ns + round(clock_s * _NS_PER_S)

        context = request.context
        root = _span_context(context)
        status = Status(StatusCode.ERROR if request.is_failed else StatusCode.UNSET)
        links = () if request.linked is None else (Link(_span_context(request.linked)),)
        for stage in request.stages:
            own = SpanContext(root.trace_id, self._ids.generate_span_id(), False, _SAMPLED, root.trace_state)
            self._end(stage, own, root, SpanKind.INTERNAL, _UNSET, (), at)
        self._end(request.root, root, _parent_of(context), SpanKind.SERVER, status, links, at)

    def _end(
        self,
        span: Span,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        status: Status,
        links: Sequence[Link],
        at: Callable[[float], int],
    ) -> None:
        """Queue a span that has ended; the SDK's tracer is made for spans that still run."""
        ended = ReadableSpan(
            span.name,
            context,
            parent,
            self._resource,
            span.attributes,
            links=links,
            kind=kind,
            status=status,
            start_time=at(span.begin),
            end_time=at(span.end),
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(ended)

    def flush(self) -> None:
        """Export what waits, now. Waits: call it outside of the event loop."""
        self._processor.force_flush()

    def close(self) -> None:
        """Export what waits, for `timeout_s` at most, and end the thread. Waits: call it outside of the event loop."""
        # Cancels an export that hangs; further ones fail at once.
        giving_up = threading.Timer(self._timeout_s, self._exporter.shutdown)
        giving_up.start()
        self._processor.shutdown()  # type: ignore[no-untyped-call]
        giving_up.cancel()


class _BoundedProcessor(BatchSpanProcessor):
    """The SDK's batching with a limit that drops and counts the newest spans. Its own drops the oldest, uncounted."""

    def __init__(self, exporter: WatchedExporter, settings: TraceSettings, metrics: TraceMetrics) -> None:
        self._watched = exporter
        self._metrics = metrics
        self._max_queued = settings.max_queued_spans
        self._num_taken = 0
        batch = min(_MAX_BATCH, settings.max_queued_spans)
        super().__init__(
            exporter,
            max_queue_size=settings.max_queued_spans + batch,  # never full
            schedule_delay_millis=settings.export_interval_s * 1000,
            max_export_batch_size=batch,
            export_timeout_millis=settings.timeout_s * 1000,  # of no effect, and read from the environment if not given
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span. Called on the event loop's thread alone."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._num_taken - self._watched.num_handled >= self._max_queued:
            self._metrics.dropped(1)
            return
        self._num_taken += 1
        super().on_end(span)


def _parent_of(context: TraceContext) -> SpanContext | None:
    """Return the caller's span; None if the trace begins here."""
    parent = context.parent
    if parent is None:
        return None
    return SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=_SAMPLED)


def _span_context(context: TraceContext) -> SpanContext:
    parent = context.parent
    state = TraceState.from_header([parent.state]) if parent is not None and parent.state else None
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=False,
        trace_flags=_SAMPLED,
        trace_state=state,
    )


_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
