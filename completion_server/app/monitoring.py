"""Builds the metrics and the traces of a server, and shows its metrics and health over HTTP."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from completion_server import __version__
from completion_server.app.shared_state import SharedState, replica_id
from completion_server.config import Config
from completion_server.core.addresses import split_address
from completion_server.core.certificates import CertificateFiles
from completion_server.core.clock import Clock
from completion_server.core.errors import ConfigError
from completion_server.engine.speculation.live import LiveSpeculation
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from completion_server.ops.collectors import Snapshot, SpeculationCollector
from completion_server.ops.logs import num_lost_records
from completion_server.ops.metrics import Metrics
from completion_server.ops.metrics_server import LabelledRegistry, MetricsServer, Probe, render
from completion_server.ops.quality import add_build_info, model_name
from completion_server.requests.gate import Readiness
from completion_server.requests.service import LoadSnapshot

if TYPE_CHECKING:
    from completion_server.ops.tracing.tracing import Tracing

_PROBE_S = 0.8
"""How long the event loop may take to answer a health check. By default Kubernetes waits 1 s for the whole answer."""


@dataclass(frozen=True, slots=True)
class WatchedParts:
    """The parts of a server whose state is read at each scrape."""

    speculation: LiveSpeculation
    snapshot: Snapshot
    readiness: Callable[[], Readiness]


class Monitoring:
    """Owns the metrics of a server, and the HTTP server that shows them."""

    def __init__(self, config: Config, registry: CollectorRegistry) -> None:
        """Register the metrics that events change; `start` adds those that are read from the parts."""
        self._config = config
        self._registry = registry
        self.metrics = Metrics(
            registry,
            budget_s=config.shed.budget_ms / 1000,
            model=model_name(config.engine.model),
            tenants=config.metrics.tenants,
            is_authenticating=config.auth.is_on,
        )
        self._page = LabelledRegistry(registry, {"region": config.server.region})
        expiry = "When the listener's certificate in use expires, in Unix time."
        name = "completion_tls_certificate_not_after_timestamp_seconds"
        self._expiries = Gauge(name, expiry, ["listener"], registry=registry)
        failed = "1 while the listener's files have changed to what can't be used, and the certificate before stays."
        name = "completion_tls_certificate_reload_failed"
        self._failed_reloads = Gauge(name, failed, ["listener"], registry=registry)
        add_build_info(
            registry,
            __version__,
            model=(config.engine.model, config.engine.revision),
            draft_model=(config.engine.draft_model, config.engine.draft_revision),
        )
        replicas = "The number of servers that this one is told of (admission.assumed_replicas)."
        Gauge("completion_assumed_replicas", replicas, registry=registry).set(config.admission.assumed_replicas)

    def render(self, names: Sequence[str] = ()) -> str:
        """Return the metrics with these names as their page shows them, all without names. Safe in any thread."""
        return render(self._page, names)

    def add_certificates(self, certificates: Mapping[str, CertificateFiles]) -> None:
        """Show when the certificates of listeners expire, by listener, and whether they could be read again."""
        for listener, files in certificates.items():
            self._expiries.labels(listener).set_function(partial(_expiry_of, files))
            self._failed_reloads.labels(listener).set_function(partial(_failure_of, files))

    def start(self, parts: WatchedParts, stack: contextlib.AsyncExitStack) -> str:
        """Serve until `stack` is closed; return the HTTP server's address, "" if it is switched off.

        Raises:
            ConfigError: the address can't be used.

        """
        for collector in (parts.snapshot, SpeculationCollector(parts.speculation.totals)):
            self._registry.register(collector)
            stack.callback(self._registry.unregister, collector)
        address = self._config.server.metrics_listen
        if not address:
            return ""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        probes = {
            "/healthz": lambda: _probe_life(loop),
            "/readyz": lambda: _probe_readiness(parts.readiness()),
        }
        try:
            server = MetricsServer(host, port, self._page, probes)
        except OSError as error:
            msg = f"server.metrics_listen: can't listen on {address}: {error}"
            raise ConfigError(msg) from error
        stack.callback(server.stop)
        return f"{address.rpartition(':')[0]}:{server.port}"


def _expiry_of(files: CertificateFiles) -> float:
    return files.current.expires_at


def _failure_of(files: CertificateFiles) -> float:
    return float(files.has_failed)


def snapshot(
    engine: SupervisedEngine,
    speculation: LiveSpeculation,
    shared: SharedState,
    load_now: Callable[[], LoadSnapshot | None],
) -> Snapshot:
    """Return what is read from the parts of a server; `load_now` returns None while the service is being built."""

    def load(name: str) -> float:
        found = load_now()
        return 0.0 if found is None else float(getattr(found, name))

    return Snapshot(
        gauges={
            "live_sessions": lambda: load("num_sessions"),
            "queued_requests": lambda: load("num_queued"),
            "running_requests": lambda: load("num_occupied"),
            "slots": lambda: load("num_slots"),
            "num_speculative_tokens": lambda: speculation.num_speculative_tokens(engine.stats().num_running),
            "engine_ready": lambda: engine.state is EngineState.READY,
            "engine_running_requests": lambda: engine.stats().num_running,
            "engine_waiting_requests": lambda: engine.stats().num_waiting,
            "engine_kv_usage_ratio": lambda: engine.stats().kv_usage,
            **shared.gauges(),
        },
        counters={
            "engine_restarts": lambda: engine.num_restarts,
            "engine_generated_tokens": lambda: engine.stats().num_generated_tokens,
            "engine_aborted_tokens": lambda: engine.stats().num_aborted_tokens,
            "lost_log_records": num_lost_records,
            **shared.counters(),
        },
    )


def _probe_life(loop: asyncio.AbstractEventLoop) -> Probe:
    """Return whether the event loop runs. Called from another thread."""
    answered = threading.Event()
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        return Probe(is_passed=False, state="the event loop has ended")
    is_passed = answered.wait(_PROBE_S)
    return Probe(is_passed, "ok" if is_passed else f"the event loop did not answer within {_PROBE_S:g} s")


def _probe_readiness(readiness: Readiness) -> Probe:
    """Return whether requests are accepted. Called from another thread."""
    return Probe(readiness is Readiness.READY, readiness.value)


def make_tracing(config: Config, clock: Clock) -> "Tracing | None":
    """Return the traces of a server, not yet started; None if they are off."""
    if not config.traces.endpoint:
        return None
    from completion_server.ops.tracing.tracing import Tracing

    engine = config.engine
    resource = {
        "service.name": "completion-server",
        "service.version": __version__,
        "service.instance.id": replica_id(config),
        "cloud.region": config.server.region,
    }
    attributes = {
        "gen_ai.provider.name": engine.kind,
        "gen_ai.request.model": model_name(engine.model),
        "completion.model_revision": engine.revision or "",
    }
    resource, attributes = ({name: text for name, text in each.items() if text} for each in (resource, attributes))
    return Tracing(config.traces, resource, attributes, clock, budget_s=config.shed.budget_ms / 1000)
