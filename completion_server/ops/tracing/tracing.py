"""Chooses the requests that are traced, and exports their spans with OpenTelemetry's SDK, in a thread of the SDK's.

A request is chosen when it is received, or at its end if it missed its budget. Its spans are made when nothing more of
its answer will be written, with the ids that the engine's spans refer to.
"""

import asyncio
import logging
import time

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from completion_server.core.clock import Clock
from completion_server.core.errors import ConfigError
from completion_server.core.events import AnswerClosed, Emit, Event, RequestEnded
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE, TraceContext
from completion_server.ops.quality import exported_trace, has_missed_budget
from completion_server.ops.tracing.settings import TraceSettings
from completion_server.ops.tracing.spans import Attributes, describe, is_failed


class Tracing:
    """Traces the requests of one server."""

    def __init__(
        self, settings: TraceSettings, resource: Attributes, attributes: Attributes, clock: Clock, *, budget_s: float
    ) -> None:
        """Each span of a request has `attributes`. A first token later than `budget_s` has missed its budget."""
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)  # its warnings quote callers' headers
        self._settings = settings
        self._attributes = attributes
        self._clock = clock
        self._budget_s = budget_s
        self._ids = RandomIdGenerator()
        self._sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio))
        self._resource = Resource.create(resource)
        self._processor: BatchSpanProcessor | None = None

    def start(self, *, has_engine_spans: bool) -> None:
        """Start the thread. With `has_engine_spans`, vLLM exports its spans of sampled requests in the same way.

        Raises:
            ConfigError: OpenTelemetry refuses a variable of the environment.

        """
        try:
            make_exporter = HttpExporter if self._settings.is_http else GrpcExporter
            self._processor = BatchSpanProcessor(make_exporter(self._settings.endpoint))
            # The sampler keeps out what is in no request's trace, such as vLLM's start.
            provider = TracerProvider(ParentBased(ALWAYS_OFF), self._resource, shutdown_on_exit=False)
        except ValueError as error:
            msg = f"traces.endpoint: OpenTelemetry refuses a variable of the environment: {error}"
            raise ConfigError(msg) from error
        if has_engine_spans:
            provider.add_span_processor(self._processor)
            trace.set_tracer_provider(provider)

    async def aclose(self) -> None:
        """Export what waits, within the time limits of the SDK."""
        if self._processor is not None:
            await asyncio.to_thread(self._processor.shutdown)

    def begin(self, traceparent: str, tracestate: str) -> TraceContext:
        """Return the trace context of a request that comes in with these headers, either of which may be ""."""
        context = TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent, TRACESTATE: tracestate}, Context())
        parent = trace.get_current_span(context).get_span_context()
        trace_id, span_id = parent.trace_id or self._ids.generate_trace_id(), self._ids.generate_span_id()
        is_sampled = self._sampler.should_sample(context, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
        caller = (f"{parent.span_id:016x}", parent.trace_state.to_header()) if parent.is_valid else ()
        return TraceContext(f"{trace_id:032x}", f"{span_id:016x}", is_sampled, *caller)

    def heard_by(self, emit: Emit) -> Emit:
        """Return an `emit` that also exports each request that is traced, when nothing more of it will be written."""

        def emit_both(event: Event) -> None:
            if isinstance(event, AnswerClosed):
                self._export(event.ended, event.stream_s)
            emit(event)

        return emit_both

    def _export(self, event: RequestEnded, stream_s: float | None) -> None:
        """Queue the spans of a request, if it is traced. Never waits: spans are dropped if too many wait."""
        context = exported_trace(event, self._budget_s)
        if context is None or self._processor is None:
            return
        is_missed = has_missed_budget(event, self._budget_s)
        root, stages = describe(event, context, self._attributes, stream_s=stream_s, missed_budget=is_missed)
        own, linked = _span_context(context, context.span_id), event.marks.generation_trace
        parent = _span_context(context, context.parent_id) if context.parent_id else None
        is_linked = linked is not None and linked.is_sampled and linked.span_id != context.span_id
        links = [trace.Link(_span_context(linked, linked.span_id))] if linked is not None and is_linked else []
        # One offset between both clocks for all spans, so that their durations are exact.
        offset_ns = time.time_ns() - round(self._clock.now() * 1e9)
        for span in (*stages, root):
            is_root = span is root
            ended = ReadableSpan(
                span.name,
                own if is_root else _span_context(context, f"{self._ids.generate_span_id():016x}"),
                parent if is_root else own,
                attributes=span.attributes,
                links=links if is_root else (),
                kind=SpanKind.SERVER if is_root else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR if is_root and is_failed(event.end.outcome) else StatusCode.UNSET),
                start_time=offset_ns + round(span.begin * 1e9),
                end_time=offset_ns + round(span.end * 1e9),
                resource=self._resource,
            )
            self._processor.on_end(ended)


def _span_context(context: TraceContext, span_id: str) -> SpanContext:
    state, is_remote = TraceState.from_header([context.state]), span_id == context.parent_id
    return SpanContext(int(context.trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED), state)
