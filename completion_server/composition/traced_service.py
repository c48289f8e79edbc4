"""Builds the traces of a server from its configuration. Part of the composition root."""

from prometheus_client import CollectorRegistry

from completion_server import __version__
from completion_server.composition.shared_state import replica_id
from completion_server.config import Config
from completion_server.core.clock import Clock
from completion_server.telemetry.tracing.tracing import Service, Tracing


def make_tracing(config: Config, clock: Clock, registry: CollectorRegistry) -> Tracing:
    """Return the traces of a server, not yet started."""
    engine = config.engine
    return Tracing(
        config.traces,
        Service(__version__, replica_id(config), config.server.region, engine.model, engine.kind),
        clock,
        registry,
        budget_s=config.shed.budget_ms / 1000,
        shares=engine.kind == "vllm" and config.traces.engine_spans,
    )
