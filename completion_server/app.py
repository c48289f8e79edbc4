"""The composition root: builds every part, owns the task group, and knows how to start, drain and stop.

The only module that picks concrete classes and the only one that wires observers.
"""

import asyncio
import contextlib
import importlib
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from completion_server import __version__
from completion_server.admission.gate import Gate, Readiness
from completion_server.admission.quotas import Quotas
from completion_server.admission.strain import Strain
from completion_server.config import Config
from completion_server.core.clock import Clock, MonotonicClock
from completion_server.core.errors import ConfigError, UnavailableError
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.engine.interface import Engine, EngineInfo
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from completion_server.engine.vllm import process as vllm_process
from completion_server.pipeline import Pipeline
from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.loading import load_prompt_builder
from completion_server.rpc.admin import AdminServicer, Controls
from completion_server.rpc.completion import CompletionServicer
from completion_server.rpc.server import (
    Health,
    Listener,
    build_admin_server,
    build_public_server,
    is_loopback,
    split_address,
)
from completion_server.scheduling.book import Book, Shedding
from completion_server.scheduling.limiter import Limiter
from completion_server.scheduling.order import ORDERS
from completion_server.scheduling.runner import Runner
from completion_server.speculation.live import LiveSpeculation
from completion_server.telemetry.logs import set_level
from completion_server.telemetry.metrics import Metrics, Snapshot
from completion_server.telemetry.metrics_server import MetricsServer

logger = logging.getLogger(__name__)

_LEAST_PROMPT_TOKENS = 64

_FIRST_TOKEN_SHARE = 0.75
"""Of a request's budget that the engine may take: the rest is for waiting."""

_CLOSE_S = 1.0
"""How long open streams may take to hear that the server ends."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a started server tells whoever started it."""

    address: str
    admin_address: str
    metrics_address: str
    engine: EngineInfo
    prompt_template: str


def make_engine_factory(config: Config) -> Callable[[], Engine]:
    """Return what makes the configured kind of engine.

    Raises:
        ConfigError: the settings don't fit that kind.

    """
    settings = config.engine
    if settings.kind == "scripted":
        from completion_server.engine.scripted.engine import ScriptedEngine

        return lambda: ScriptedEngine.from_settings(settings)
    if not settings.model:
        msg = "engine.model: must be set: the path of a model folder, or a hub id such as org/name"
        raise ConfigError(msg)
    _import_vllm("arguments", settings).engine_args(settings)
    vllm = _import_vllm("engine", settings)
    return lambda: vllm.VllmEngine(settings)


def engine_arguments(config: Config) -> dict[str, Any]:
    """Return the arguments that vLLM's engine would get, empty for an engine of another kind.

    Raises:
        ConfigError: vLLM does not know one of them.

    """
    settings = config.engine
    if settings.kind != "vllm":
        return {}
    arguments: dict[str, Any] = _import_vllm("arguments", settings).engine_args(settings)
    return arguments


def _import_vllm(name: str, settings: EngineSettings) -> ModuleType:
    """Return a module of `engine` that imports vLLM. That takes seconds, which only those who need it should wait."""
    vllm_process.prepare(settings.log_level, settings.cpu_kv_cache_gib)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of imports; nothing an operator can mend
        return importlib.import_module(f"completion_server.engine.vllm.{name}")


class App:
    """One server process: one engine, and everything in front of it."""

    def __init__(
        self,
        config: Config,
        make_engine: Callable[[], Engine],
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Build the parts that need no engine. vLLM's own metrics are in the process's one REGISTRY."""
        self._config = config
        self._registry = registry
        self._clock = clock or MonotonicClock()
        self._started_at = self._clock.now()
        self._gate = Gate(config.admission)
        self._health = Health()
        self._engine = SupervisedEngine(make_engine, config.engine, self._clock, self._engine_changed)
        self._speculation = LiveSpeculation(self._engine, config.speculation, self._clock, time.time)
        self._metrics = Metrics(registry)
        self._runner = make_runner(config, self._clock, self._metrics.work_stopped)
        self._strain = Strain(config.shed.lag_ms / 1000, self._clock, self._metrics.loop_lagged)
        self._drain_requested = asyncio.Event()
        self._grace_s = config.server.grace_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, on_ready: Callable[[Ready], None]) -> None:
        """Start, serve until told to drain, drain and stop.

        Raises:
            ConfigError: an address can't be used, or the prompt does not fit the model.
            EngineDeadError: the engine did not start.

        """
        async with contextlib.AsyncExitStack() as stack:
            metrics_address = self._start_metrics(stack)
            prompts = await asyncio.to_thread(load_prompts, self._config)
            pipeline = self._join(prompts)
            servicer = CompletionServicer(
                pipeline,
                self._config.server,
                self._config.limits,
                self._config.admission,
                sheds_as_status=self._config.shed.as_status,
            )
            public = build_public_server(self._config.server, self._config.limits, servicer, self._health)
            admin = self._build_admin(pipeline, prompts)
            await self._health.set(is_serving=False)
            stack.push_async_callback(self._engine.stop)
            for listener in filter(None, (public, admin)):
                await listener.start()
                stack.push_async_callback(listener.stop, _CLOSE_S)
            if not self._config.server.tls.certificate:
                _warn_if_reachable("server.listen", public.address, "others can read what is typed")
            if self._config.admission.trust_user_names and not self._config.server.tls.client_ca:
                consequence = "others can call under any user's name"
                _warn_if_reachable(
                    "admission.trust_user_names", public.address, consequence, lack="client certificates"
                )
            await self._engine.start()
            self._speculation.begin()
            info = self._engine.info
            _check_fits(info, self._config)
            admin_address = admin.address if admin else ""
            ready = Ready(public.address, admin_address, metrics_address, info, prompts.template_name)
            await self._serve(public, servicer, lambda: on_ready(ready))

    @property
    def has_served(self) -> bool:
        """Whether it was ever ready to take requests."""
        return self._gate.readiness is not Readiness.STARTING

    @property
    def is_draining(self) -> bool:
        """Whether new requests are turned away."""
        return self._gate.is_draining

    def drain(self, grace_s: float | None = None) -> None:
        """Stop taking requests, let accepted ones finish, then end."""
        if grace_s is not None:
            self._grace_s = grace_s
        self._drain_requested.set()

    async def _serve(self, public: Listener, servicer: CompletionServicer, on_ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as group:
            # In this order: the engine says that it is ready only when the runner takes requests.
            runner = group.create_task(self._runner.run())
            watch = group.create_task(self._engine.run())
            strain = group.create_task(self._strain.run())
            await asyncio.sleep(0)
            on_ready()
            await self._drain_requested.wait()
            # First of all, so that load balancers look elsewhere while the accepted requests finish.
            self._gate.drain()
            await self._health.set(is_serving=False)
            logger.info("draining: %d requests to finish", self._runner.book.num_live)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._runner.wait_idle(), self._grace_s)
            self._runner.end_all_nowait(self._cut_short())
            servicer.close_sessions()
            await public.stop(_CLOSE_S)
            for task in (watch, strain, runner):
                task.cancel()

    def _cut_short(self) -> Outcome:
        """Return what becomes of requests that did not finish in time."""
        retry_after_ms = self._config.admission.retry_after_ms
        error = UnavailableError("the server is shutting down", retry_after_ms=retry_after_ms)
        return Outcome(FinishReason.ERROR, error=error, retry_after_ms=retry_after_ms)

    def _join(self, prompts: PromptBuilder) -> Pipeline:
        return Pipeline(
            gate=self._gate,
            quotas=Quotas(self._config.admission),
            runner=self._runner,
            prompts=prompts,
            engine=self._engine,
            clock=self._clock,
            observer=self._metrics,
            scheduling=self._config.scheduling,
            budget_s=self._config.shed.budget_ms / 1000,
            retry_after_ms=self._config.admission.retry_after_ms,
            delta_pause_s=self._config.server.delta_pause_ms / 1000,
            strain=self._strain,
            cache_scope=self._config.engine.cache_scope,
        )

    def _build_admin(self, pipeline: Pipeline, prompts: PromptBuilder) -> Listener | None:
        if not self._config.server.admin_listen:
            return None
        controls = Controls(
            version=__version__,
            prompt_template=prompts.template_name,
            uptime_s=lambda: self._clock.now() - self._started_at,
            ended_requests=lambda: self._metrics.ended,
            drain=self.drain,
            set_log_level=set_level,
        )
        return build_admin_server(
            self._config.server, AdminServicer(pipeline, self._speculation, controls), self._health
        )

    def _start_metrics(self, stack: contextlib.AsyncExitStack) -> str:
        snapshot = self._watch_parts()
        self._registry.register(snapshot)
        stack.callback(self._registry.unregister, snapshot)
        address = self._config.server.metrics_listen
        if not address:
            return ""
        host, port = split_address(address, "server.metrics_listen")
        try:
            server = MetricsServer(host, port, self._registry)
        except OSError as error:
            msg = f"server.metrics_listen: can't listen on {address}: {error}"
            raise ConfigError(msg) from error
        stack.callback(server.stop)
        _warn_if_reachable("server.metrics_listen", address, "others can read the load and the outcome counts")
        return f"{address.rpartition(':')[0]}:{server.port}"

    def _watch_parts(self) -> Snapshot:
        book = self._runner.book
        return Snapshot(
            gauges={
                "live_sessions": lambda: self._gate.num_sessions,
                "queued_requests": lambda: book.num_queued,
                "running_requests": lambda: book.num_occupied,
                "slots": lambda: book.num_slots,
                "engine_ready": lambda: self._engine.state is EngineState.READY,
                "engine_running_requests": lambda: self._engine.stats().num_running,
                "engine_waiting_requests": lambda: self._engine.stats().num_waiting,
                "engine_kv_usage_ratio": lambda: self._engine.stats().kv_usage,
            },
            counters={
                "engine_restarts": lambda: self._engine.num_restarts,
                "engine_generated_tokens": lambda: self._engine.stats().num_generated_tokens,
                "engine_aborted_tokens": lambda: self._engine.stats().num_aborted_tokens,
            },
        )

    def _engine_changed(self, state: EngineState) -> None:
        is_ready = state is EngineState.READY
        self._gate.set_engine_ready(is_ready)
        if not self._gate.is_draining:
            task = asyncio.get_running_loop().create_task(self._health.set(is_serving=is_ready))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _warn_if_reachable(key: str, address: str, consequence: str, lack: str = "TLS") -> None:
    """Warn of an unprotected listener that other machines can reach."""
    if not is_loopback(address):
        logger.warning("%s: listening on %s without %s: %s", key, address, lack, consequence)


def make_runner(config: Config, clock: Clock, on_stopped: Callable[[float], None]) -> Runner:
    """Return the scheduler that the configuration describes."""
    scheduling = config.scheduling
    least = min(scheduling.min_slots, scheduling.max_slots)
    first_token_s = _FIRST_TOKEN_SHARE * config.shed.budget_ms / 1000
    limiter = Limiter(least, scheduling.max_slots, first_token_s, scheduling.step_tolerance)
    book = Book(
        limiter.limit,
        scheduling.max_queued,
        order=ORDERS[scheduling.order],
        shedding=Shedding(config.shed.when),
        max_retry_after_ms=config.admission.retry_after_ms,
    )
    return Runner(book, clock, limiter, on_stopped)


def load_prompts(config: Config) -> PromptBuilder:
    """Return the prompt builder for the configured model.

    Raises:
        ConfigError: the model can't be read, or leaves no room for a prompt.

    """
    return load_prompt_builder(
        config.engine.model,
        revision=config.engine.revision,
        max_prompt_tokens=prompt_budget(config),
        settings=config.prompt,
    )


def prompt_budget(config: Config) -> int:
    """Return how many tokens a prompt may have: what the model holds, less a whole completion.

    Raises:
        ConfigError: no model is set, it can't be read, or it leaves no room for a prompt.

    """
    if not config.engine.model:
        msg = "engine.model: must be set: the path of a model folder, or a hub id such as org/name"
        raise ConfigError(msg)
    engine = config.engine
    model_len = engine.max_model_len or _context_length(engine)
    # Speculation looks up to K tokens beyond the completion's last.
    room = model_len - config.limits.max_tokens - engine.num_speculative_tokens
    if room < _LEAST_PROMPT_TOKENS:
        asked = config.limits.max_tokens
        msg = f"limits.max_tokens: {asked} leaves {room} of the model's {model_len} tokens for a prompt"
        raise ConfigError(msg)
    return min(config.prompt.max_prompt_tokens, room)


def _context_length(engine: EngineSettings) -> int:
    from transformers import AutoConfig

    try:
        model = AutoConfig.from_pretrained(
            engine.model, revision=engine.revision, trust_remote_code=engine.trust_remote_code
        )
    except (OSError, ValueError) as error:
        msg = f"engine.model: {engine.model} can't be read: {error}"
        raise ConfigError(msg) from error
    return int(model.get_text_config().max_position_embeddings)


def _check_fits(info: EngineInfo, config: Config) -> None:
    """Refuse an engine that holds less than what requests may ask of it.

    Raises:
        ConfigError: a whole prompt and a whole completion don't fit.

    """
    asked = prompt_budget(config) + config.limits.max_tokens + info.num_speculative_tokens
    if asked > info.max_model_len:
        msg = f"engine.max_model_len: the engine holds {info.max_model_len} tokens, but a request may need {asked}"
        raise ConfigError(msg)
