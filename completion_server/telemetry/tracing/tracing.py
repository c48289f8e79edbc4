"""The traces of one server: sampling, the listener to events, and the export. Built by the composition root."""

import asyncio
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from completion_server.core.clock import Clock
from completion_server.core.errors import ConfigError
from completion_server.core.events import Emit, Event
from completion_server.core.trace_context import BeginTrace, no_trace
from completion_server.telemetry.quality import model_name
from completion_server.telemetry.tracing.settings import TraceSettings
from completion_server.telemetry.tracing.spans import Attributes, RequestTrace
from completion_server.telemetry.tracing.tracer import HeadSampler, RateLimit, TraceMetrics, Tracer

if TYPE_CHECKING:
    from completion_server.telemetry.tracing.export import OtlpExport

_DISABLED = "OTEL_SDK_DISABLED"
"""The environment variable with which OpenTelemetry makes no spans, without an error."""
_TIMEOUT = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
"""The environment variable that OpenTelemetry's exporter for gRPC parses, though it is given another timeout."""


@dataclass(frozen=True, slots=True)
class TracedServer:
    """What all traces say about this server."""

    version: str
    instance: str
    """Name of this server among its replicas."""
    region: str = ""
    model: str = ""
    """The target model's name, or the path of its folder; metrics and spans have it as `model_name` returns it."""
    engine: str = ""
    """The kind of engine."""
    revision: str = ""
    """The target model's."""

    def resource(self) -> dict[str, str]:
        """Return the attributes of the OpenTelemetry resource."""
        found = {
            "service.name": "completion-server",
            "service.version": self.version,
            "service.instance.id": self.instance,
            "cloud.region": self.region,
        }
        return {key: value for key, value in found.items() if value}

    def attributes(self) -> Attributes:
        """Return the attributes of the span of each request."""
        found = {
            "gen_ai.provider.name": self.engine,
            "gen_ai.request.model": model_name(self.model),
            "completion.model_revision": self.revision,
        }
        return {key: value for key, value in found.items() if value}


class Tracing:
    """Traces of requests; does nothing without an endpoint."""

    begin_trace: BeginTrace
    """Begins the trace of each request, for `rpc`."""

    def __init__(
        self,
        settings: TraceSettings,
        service: TracedServer,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        budget_s: float,
        shares: bool = False,
    ) -> None:
        """Build the parts that need no OpenTelemetry. A first token later than `budget_s` has missed its budget.

        With `shares`, spans that libraries in this process make go the same way; vLLM is one.
        """
        self._settings = settings
        self._service = service
        self._clock = clock
        self._shares = shares
        self._export: OtlpExport | None = None
        self._tracer: Tracer | None = None
        self.begin_trace = no_trace
        if not settings.endpoint:
            return
        self._metrics = metrics = TraceMetrics(registry)
        caller_limit = RateLimit(settings.caller_sampled_per_s, clock)
        sampler = HeadSampler(settings.sample_ratio, caller_limit, on_caller_limit=metrics.caller_limited)
        self._tracer = Tracer(
            sampler,
            RateLimit(settings.missed_budget_per_s, clock),
            budget_s,
            service.attributes(),
            self._pass_on,
            on_missed_limit=metrics.missed_limited if settings.missed_budget_per_s else lambda: None,
        )
        self.begin_trace = sampler.begin

    def start(self) -> None:
        """Start the thread that exports.

        Raises:
            ConfigError: OpenTelemetry is not installed, or a file of the settings or the environment can't be used.

        """
        if self._tracer is not None:
            module = _import("completion_server.telemetry.tracing.export")
            resource, version = self._service.resource(), self._service.version
            self._export = module.OtlpExport(self._settings, resource, self._clock, self._metrics, version)
            if self._shares:
                self._export.share()

    def heard_by(self, emit: Emit) -> Emit:
        """Return an `emit` that also passes events to the tracer; `emit` itself if traces are off."""
        if self._tracer is None:
            return emit
        handle = self._tracer.handle

        def emit_both(event: Event) -> None:
            try:
                event = handle(event)  # an ended request is counted with the trace that is chosen for it
            finally:
                emit(event)  # even if its export raises

        return emit_both

    async def flush(self) -> None:
        """Export what waits, now."""
        if self._tracer is not None and self._export is not None:
            self._tracer.flush()
            await asyncio.to_thread(self._export.flush)

    async def aclose(self) -> None:
        """Export what waits, for `traces.timeout_s` at most."""
        if self._tracer is not None and self._export is not None:
            self._tracer.flush()
            await asyncio.to_thread(self._export.close)

    def _pass_on(self, request: RequestTrace) -> None:
        if self._export is not None:
            self._export.export(request)


def check_usable(settings: TraceSettings, environ: Mapping[str, str]) -> None:
    """Check that traces can be exported, if they are on.

    Raises:
        ConfigError: OpenTelemetry is not installed, the environment stops it, or a file can't be used.

    """
    if settings.endpoint:
        if settings.protocol == "grpc" and not _is_number(environ.get(_TIMEOUT, "0")):
            msg = f"traces.endpoint: {_TIMEOUT} in the environment is no number, which OpenTelemetry refuses; unset it"
            raise ConfigError(msg)
        if environ.get(_DISABLED, "").strip().lower() == "true":
            msg = f'traces.endpoint: {_DISABLED} is true in the environment; unset it, or set the endpoint to ""'
            raise ConfigError(msg)
        _import("completion_server.telemetry.tracing.collector").read_files(settings)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _import(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = (
            "traces.endpoint: needs OpenTelemetry, which is not installed; install the extra `traces`, such as"
            f" pip install 'completion-server[traces]' ({error})"
        )
        raise ConfigError(msg) from error
