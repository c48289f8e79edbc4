"""The composition root: builds every part, owns the task group, and knows how to start, drain and stop.

The only module that picks concrete classes and the only one that wires observers.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry

from completion_server import __version__
from completion_server.api.callers import Callers
from completion_server.api.http.server import HttpListener
from completion_server.api.rpc.admin import AdminServicer, Controls
from completion_server.api.rpc.completion import CompletionServicer
from completion_server.api.rpc.listening import load_certificates
from completion_server.api.rpc.server import HealthReporter, Listener, build_admin_server, build_public_server
from completion_server.app.checks import make_authenticator, warn_of_exposure
from completion_server.app.http_listener import build_http
from completion_server.app.models import check_fits, load_edits, load_prompts
from completion_server.app.monitoring import Monitoring, WatchedParts, make_tracing, snapshot
from completion_server.app.records import Records
from completion_server.app.samples import begin_speculation, make_samples
from completion_server.app.shared_state import SharedState
from completion_server.app.shutdown import Shutdown, told_plainly
from completion_server.app.speed import Speed, measure_speed
from completion_server.auth.authenticator import Authenticator
from completion_server.config import Config
from completion_server.core.certificates import CertificateFiles, watch
from completion_server.core.clock import Clock, MonotonicClock
from completion_server.core.errors import CutShortError
from completion_server.core.events import Emit
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.trace_context import BeginTrace, no_trace
from completion_server.engine.interface import Engine, EngineInfo
from completion_server.engine.speculation.live import LiveSpeculation
from completion_server.engine.start_times import StartTimes
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from completion_server.ops.logs import set_level
from completion_server.requests.gate import Readiness
from completion_server.requests.limits.file_quotas import FileQuotas, open_quotas
from completion_server.requests.loop_lag import LoopLagMonitor
from completion_server.requests.service import LoadSnapshot, Service, ServiceParts
from completion_server.requests.settings import ServingSettings
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.edits.builder import EditPrompts

logger = logging.getLogger(__name__)

_CLOSE_S = 1.0
"""How long open streams may take to end when the server stops."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The addresses and the models of a started server."""

    address: str
    admin_address: str
    metrics_address: str
    http_address: str
    """"" if there is no HTTP listener."""
    engine: EngineInfo
    prompt_template: str
    speculation: str
    """How K is chosen, and why; "" without a draft model."""
    load: LoadSnapshot
    speed: Speed | None
    """What the engine does for a user; None if that was not measured."""


class App:
    """One server process: one engine, and everything in front of it."""

    def __init__(
        self,
        config: Config,
        make_engine: Callable[[], Engine],
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        start_times: StartTimes | None = None,
        shutdown: Shutdown | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        """Build the parts that need no engine. vLLM's own metrics are in the process's one REGISTRY.

        `start_times` keeps how long the engine's last start took; `shutdown` limits the time of the stop.
        `authenticator` verifies callers instead of the configured one.

        Raises:
            ConfigError: a file that callers are verified against can't be used.

        """
        self._config = config
        self._clock = clock or MonotonicClock()
        self._started_at = self._clock.now()
        self._health = HealthReporter()
        self._engine = SupervisedEngine(
            make_engine, config.engine, self._clock, self._engine_changed, start_times=start_times
        )
        self._speculation = LiveSpeculation(self._engine, config.speculation, self._clock, time.time)
        self._monitoring = Monitoring(config, registry)
        self._tracing = make_tracing(config, self._clock)
        self._records = Records(config, registry)
        heard = self._records.heard_by(self._monitoring.metrics.handle)  # the one place that decides who hears events
        self._emit: Emit = heard if self._tracing is None else self._tracing.heard_by(heard)
        self._begin_trace: BeginTrace = no_trace if self._tracing is None else self._tracing.begin
        self._authenticator = make_authenticator(config, self._emit)
        self._loop_lag = LoopLagMonitor(config.shed.lag_ms / 1000, self._clock, self._emit)
        self._shared = SharedState(config, self._clock, self._emit)
        self._callers = Callers(config.admission, config.limits, authenticator or self._authenticator, self._emit)
        self._certificates: dict[str, CertificateFiles] = {}
        path = config.admission.quotas_file
        self._quota_file = open_quotas(path) if path else None
        self._file_quotas = FileQuotas(self._quota_file.content) if self._quota_file else None
        self._http: HttpListener | None = None
        self._service: Service | None = None
        """None until the prompts are loaded."""
        self._drain_requested = asyncio.Event()
        self._grace_s = config.server.grace_s
        self._shutdown = shutdown or Shutdown()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, on_ready: Callable[[Ready], None]) -> None:
        """Start, serve until told to drain, drain and stop.

        Raises:
            ConfigError: an address or a certificate can't be used, or the prompt does not fit the model.
            EngineDeadError: the engine did not start, or not again.

        """
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            if self._tracing is not None:
                stack.push_async_callback(self._tracing.aclose)
                self._tracing.start(has_engine_spans=config.engine.kind == "vllm")
            certificates = self._certificates = load_certificates(config.server)
            self._records.start(self._shared.secret, stack)
            read = snapshot(self._engine, self._speculation, self._shared, self._load)
            watched = WatchedParts(self._speculation, read, self._readiness)
            metrics_address = self._monitoring.start(watched, stack)
            prompts = await asyncio.to_thread(load_prompts, config)
            edits = await asyncio.to_thread(load_edits, config)
            if edits is not None:
                logger.info("the model writes next edits, in the form %s", edits.template.name)
            service = self._service = self._assemble(prompts, edits)
            self._shared.serve(service)
            servicer = self._build_servicer(service)
            admin = self._build_admin(service, prompts)
            await self._health.set(is_serving=False)
            stack.push_async_callback(self._stop_engine)
            self._monitoring.add_certificates(certificates)
            if admin is not None:
                await admin.server.start()
                stack.push_async_callback(admin.server.stop, _CLOSE_S)
            public = await self._listen(service, servicer, stack)
            await self._engine.start()
            await self._shared.know_model(prompts)
            info = self._engine.info
            check_fits(info, config)
            speculation = await begin_speculation(config, self._engine, self._speculation, prompts, self._clock)
            speed = await self._measure_speed(prompts)
            stack.callback(self._shutdown.begin, "closing the listeners")
            http_address = self._http.address if self._http is not None else ""
            addresses = public.address, admin.address if admin else "", metrics_address, http_address
            ready = Ready(*addresses, info, prompts.template.name, speculation, service.load(), speed)
            with told_plainly():
                await self._serve(service, public, servicer, lambda: on_ready(ready))

    async def _measure_speed(self, prompts: PromptBuilder) -> Speed | None:
        """Measure a real engine, and fit the prompts to it if their budget is not set."""
        config, engine = self._config, self._engine
        if config.engine.kind != "vllm" or not config.engine.warm_up:
            return None
        budget_s = config.shed.budget_ms / 1000
        make = make_samples(prompts)
        speed = await measure_speed(engine.current, make, budget_s, config.engine.step_timeout_s)
        if not config.prompt.max_prompt_tokens:
            num_tokens = config.prompt.measured_budget(speed.prompt_tokens_in(budget_s))
            prompts.limit(num_tokens)
            logger.info("prompts have up to %d tokens (prompt.max_prompt_tokens)", num_tokens)
        return speed

    def _build_servicer(self, service: Service) -> CompletionServicer:
        config = self._config
        return CompletionServicer(
            service,
            self._callers,
            config.server,
            config.limits,
            config.admission,
            sheds_as_status=config.shed.as_status,
            begin_trace=self._begin_trace,
        )

    async def _listen(
        self, service: Service, servicer: CompletionServicer, stack: contextlib.AsyncExitStack
    ) -> Listener:
        """Listen to editors until `stack` is closed; return the public listener."""
        config, certificate = self._config, self._certificates.get("public")
        public = build_public_server(config.server, config.limits, servicer, self._health, certificate)
        await public.server.start()
        stack.push_async_callback(public.server.stop, _CLOSE_S)
        self._http = build_http(
            config,
            service,
            self._callers,
            self._engine,
            self._speculation,
            self._monitoring.metrics,
            self._begin_trace,
            certificate,
        )
        if self._http is not None:
            self._http.start()
            stack.push_async_callback(self._http.stop, _CLOSE_S)
        warn_of_exposure(config, public.address)
        return public

    def _readiness(self) -> Readiness:
        return Readiness.STARTING if self._service is None else self._service.gate.readiness

    def _load(self) -> LoadSnapshot | None:
        return None if self._service is None else self._service.load()

    @property
    def has_served(self) -> bool:
        """Whether it was ever ready to accept requests."""
        return self._readiness() is not Readiness.STARTING

    @property
    def is_draining(self) -> bool:
        """Whether new requests are turned away."""
        return self._readiness() is Readiness.DRAINING

    def drain(self, grace_s: float | None = None) -> None:
        """Stop taking requests, let accepted ones finish, then end."""
        if grace_s is not None:
            self._grace_s = grace_s
        self._drain_requested.set()

    async def _serve(
        self, service: Service, public: Listener, servicer: CompletionServicer, on_ready: Callable[[], None]
    ) -> None:
        async with asyncio.TaskGroup() as group:
            with self._shutdown.begins_on_failure():
                # In this order: the engine says that it is ready, which opens the gate, only when the runner takes
                # requests.
                runner = group.create_task(service.runner.run(), name="runner")
                shared = group.create_task(self._shared.run(), name="shared state")
                engine = group.create_task(self._engine.run(), name="engine supervisor")
                tasks = [runner, shared, engine, group.create_task(self._loop_lag.run(), name="loop lag")]
                certificates = tuple(self._certificates.values())
                tasks.append(group.create_task(watch(certificates), name="certificates"))
                if self._quota_file is not None and self._file_quotas is not None:
                    tasks.append(group.create_task(self._file_quotas.follow(self._quota_file), name="quotas"))
                if self._authenticator is not None:
                    tasks.append(group.create_task(self._authenticator.run(), name="authentication"))
                await asyncio.sleep(0)
                on_ready()
                await self._drain_requested.wait()
                await self._drain(service, public, servicer)
                self._shutdown.begin("ending the server's tasks")
                for task in reversed(tasks):
                    task.cancel()

    async def _drain(self, service: Service, public: Listener, servicer: CompletionServicer) -> None:
        """Turn new requests away, let accepted ones finish, and close the connections."""
        # First of all, so that load balancers choose other servers while the accepted requests finish.
        service.gate.drain()
        await self._health.set(is_serving=False)
        self._shutdown.drain(service.load().num_live, self._grace_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await service.runner.wait_idle()
        self._shutdown.begin("closing sessions and connections")
        service.runner.end_all_nowait(self._cut_short())
        servicer.close_sessions()
        if self._http is not None:
            await self._http.stop(_CLOSE_S)
        await public.server.stop(_CLOSE_S)

    async def _stop_engine(self) -> None:
        self._shutdown.begin("stopping the engine")
        await self._engine.stop()

    def _cut_short(self) -> Outcome:
        """Return the outcome of requests that did not finish in time."""
        retry_after_ms = self._config.admission.retry_after_ms
        error = CutShortError("the server is shutting down", retry_after_ms=retry_after_ms)
        return Outcome(FinishReason.ERROR, error=error, retry_after_ms=retry_after_ms)

    def _assemble(self, prompts: PromptBuilder, edits: EditPrompts | None) -> Service:
        config = self._config
        settings = ServingSettings(
            config.admission, config.scheduling, config.shed, delta_pause_s=config.server.delta_pause_ms / 1000
        )
        if self._file_quotas is not None:
            self._shared.add_up(self._file_quotas.tenant_days)
        return Service(
            settings,
            self._engine,
            prompts,
            self._clock,
            self._emit,
            ServiceParts(
                isolation=self._shared.isolation,
                loop_lag=self._loop_lag,
                edits=edits,
                cache=self._shared.cache,
                file_quotas=self._file_quotas,
                weight_of=self._file_quotas.weight_of if self._file_quotas else lambda _tenant: 1.0,
                replicas=self._shared,
                remaining_start_s=self._engine.remaining_start_s,
                num_speculative_tokens=self._speculation.num_speculative_tokens,
            ),
        )

    def _build_admin(self, service: Service, prompts: PromptBuilder) -> Listener | None:
        if not self._config.server.admin_listen:
            return None
        controls = Controls(
            version=__version__,
            region=self._config.server.region,
            prompt_template=prompts.template.name,
            uptime_s=lambda: self._clock.now() - self._started_at,
            ended_requests=self._monitoring.metrics.num_ended,
            replication=self._shared.replication_status,
            cache=lambda: self._shared.cache_status(self._monitoring.metrics),
            drain=self.drain,
            set_log_level=set_level,
            render_metrics=self._monitoring.render,
        )
        return build_admin_server(
            self._config.server,
            AdminServicer(service, self._engine, self._speculation, controls),
            self._health,
            self._callers,
            self._certificates.get("admin"),
        )

    def _engine_changed(self, state: EngineState) -> None:
        is_ready = state is EngineState.READY
        if self._service is not None:
            self._service.gate.set_engine_ready(is_ready)
        if not self.is_draining:
            task = asyncio.get_running_loop().create_task(self._health.set(is_serving=is_ready))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
