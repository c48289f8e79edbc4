"""vLLM as an engine.

The engine core runs in a process of its own; the server's process talks to it through `AsyncLLM`.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import (
    Engine,
    EngineDeadError,
    EngineInfo,
    EngineShare,
    EngineStats,
    EngineStep,
    SpeculationControl,
    SpeculationLookup,
)
from completion_server.engine.loading import Loading
from completion_server.engine.processes import Remnants, cpu_seconds, kill_and_wait, still_running
from completion_server.engine.revisions import resolve_revisions
from completion_server.engine.settings import EngineSettings
from completion_server.engine.speculation_control import EngineSpeculation
from completion_server.engine.vllm.arguments import (
    check_draft_length,
    engine_args,
    locked_reason,
    lookup_at_start,
    schedulers_locked_reason,
)
from completion_server.engine.vllm.client import VllmClient
from completion_server.engine.vllm.compiled import CompiledCode
from completion_server.engine.vllm.drafts.shared_lookup import LookupPublisher
from completion_server.engine.vllm.environment import choose_model_runner, keep_on_loopback, without_spans
from completion_server.engine.vllm.patches import log_patches
from completion_server.engine.vllm.process import yield_to_server
from completion_server.engine.vllm.sharing.clients import client_at, requests_of
from completion_server.engine.vllm.sharing.parent import SharedCore
from completion_server.engine.vllm.sharing.share import unshared_reason
from completion_server.engine.vllm.token_accounting import REPORT_FIELD, StepCounts, StepMeter

logger = logging.getLogger(__name__)

SCHEDULERS_MODULE = "completion_server.engine.vllm.drafts.schedulers"
"""The module of the schedulers that the engine core loads."""

_NICE_ON_A_CPU = 5

_END_S = 5.0
"""How long killed processes may take to end."""

_LAST_REQUESTS_S = 0.2
"""How long after its end a front end's last requests may reach the core."""

_ABORT_S = 5.0
"""How long the core may take to abort a front end's requests: longer than a step."""


class _Stats(StatLoggerBase):
    """Keeps the scheduler's last statistics. vLLM calls it after each step that changed them."""

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        self.num_running = 0
        self.num_waiting = 0
        self.kv_usage = 0.0
        self.num_steps = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        if scheduler_stats is None:
            return
        self.num_running = scheduler_stats.num_running_reqs
        self.num_waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        self.kv_usage = scheduler_stats.kv_cache_usage
        self.num_steps += 1
        report = getattr(scheduler_stats, REPORT_FIELD, None)
        whole = StepCounts.from_report(report) if report else None
        self._meter.end(scheduler_stats.spec_decoding_stats, self.num_running, whole)

    def log_engine_initialized(self) -> None:
        """Log nothing."""


class NoMetrics(PrometheusStatLogger):
    """Takes the place of vLLM's own logger, which vLLM adds otherwise, and keeps nothing."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Make no metric."""

    def record(self, *_args: Any, **_kwargs: Any) -> None:
        """Record nothing."""

    def log_engine_initialized(self) -> None:
        """Log nothing."""


class VllmEngine(VllmClient, Engine):
    """One vLLM engine: one GPU, one tensor-parallel group, or a CPU."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        traces_endpoint: str = "",
        num_places: int = 0,
        folder: Path | None = None,
    ) -> None:
        """Prepare; nothing is loaded before `start`.

        With `traces_endpoint`, the URL of a collector, vLLM makes spans of requests with trace headers. They go where
        this process's provider of OpenTelemetry sends them. Other processes can attach at `num_places` places. What is
        shared with them and with the core is in `folder`, else where temporary files are.
        """
        super().__init__(has_spans=bool(traces_endpoint))
        self._settings = settings
        self._traces_endpoint = traces_endpoint
        self._num_places = num_places
        self._folder = folder
        self._shared: SharedCore | None = None
        self._stats = _Stats(self._accounting.meter)
        self._publisher: LookupPublisher | None = None
        self._locked_reason = ""
        self._speculation: EngineSpeculation | None = None
        self._loading = Loading(self._load, self._discard)
        self._processes: list[psutil.Process] = []

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The engine's processes on this machine."""
        return tuple(process.pid for process in self._processes)

    async def start(self) -> None:
        """Load the model. The event loop keeps running meanwhile."""
        try:
            llm = await self._loading.run()
        except ConfigError:
            raise
        except Exception as error:
            msg = f"the engine did not start: {_reason(error)}"
            raise EngineDeadError(msg) from error
        self._processes = still_running((), _core_ids(llm))
        config = llm.vllm_config
        speculative = config.speculative_config
        info = EngineInfo(
            model=self._settings.model,
            max_model_len=config.model_config.max_model_len,
            draft_model=self._settings.draft_model if speculative else "",
            num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            speculation_lookup=lookup_at_start(self._settings, config, self._locked_reason),
            speculation_locked_reason=self._locked_reason,
        )
        if self._shared is not None:
            accounting, board = self._accounting, self._shared.board
            accounting.read_k = lambda num_outputs: accounting.k_of(max(num_outputs, board.num_running))
        self._connected(llm, info)
        if self._publisher is not None and not self._locked_reason:
            self._speculation = EngineSpeculation(info, self._publish)

    def _publish(self, lookup: SpeculationLookup, is_off: bool, epoch: int) -> None:
        """Tell the engine core, and the accounting, which estimates the drafts of aborted generations from K."""
        assert self._publisher is not None
        self._accounting.lookup = lookup
        self._publisher.write(lookup, is_off=is_off, epoch=epoch)

    def _load(self) -> AsyncLLM:
        if self._settings.revision is not None:
            resolve_revisions(self._settings)  # files may have been replaced since the server started
        nice = self._settings.nice
        yield_to_server((_NICE_ON_A_CPU if current_platform.is_cpu() else 0) if nice is None else nice)
        keep_on_loopback(self._settings.vllm)
        given = engine_args(self._settings, traces_endpoint=self._traces_endpoint)
        choose_model_runner(given.get("speculative_config"))
        args = AsyncEngineArgs(**given)
        config = args.create_engine_config(UsageContext.ENGINE_CONTEXT)
        check_draft_length(config)
        schedulers_reason = schedulers_locked_reason(SCHEDULERS_MODULE)
        self._locked_reason = locked_reason(self._settings, config) or schedulers_reason
        if self._num_places and (reason := unshared_reason(self._settings) or schedulers_reason):
            msg = f"server.processes: must be 1 with this engine: {reason}"
            raise ConfigError(msg)
        log_patches(
            is_cpu=current_platform.is_cpu(),
            is_k_live=not self._locked_reason,
            has_spans=self._has_spans,
            is_shared=bool(self._num_places),
        )
        if not self._locked_reason or self._num_places:
            scheduler = "LookupAsyncScheduler" if config.scheduler_config.async_scheduling else "LookupScheduler"
            config.scheduler_config.scheduler_cls = f"{SCHEDULERS_MODULE}.{scheduler}"
        compiled = CompiledCode()
        try:
            llm = self._publish_and_make(args, config)
        except BaseException:
            self._close_shared()
            raise
        if not args.enforce_eager and (said := compiled.describe()):
            logger.info("%s", said)
        return llm

    def _publish_and_make(self, args: AsyncEngineArgs, config: VllmConfig) -> AsyncLLM:
        if self._num_places:
            self._shared = SharedCore(self._num_places, self._folder)
        if self._locked_reason:
            return self._make_llm(args, config)
        folder, is_kept = (self._folder, False) if self._shared is None else (self._shared.folder, True)
        self._publisher = LookupPublisher(config.scheduler_config.max_num_seqs, folder, is_kept=is_kept)
        with self._publisher.published():
            llm = self._make_llm(args, config)
        self._locked_reason = self._publisher.unread_reason
        return llm

    def _make_llm(self, args: AsyncEngineArgs, config: VllmConfig) -> AsyncLLM:
        self._loading.check()
        make = AsyncLLM.from_vllm_config if self._shared is None else self._shared.start
        with self._without_exporter() as stack:
            if self._has_spans:
                stack.enter_context(without_spans())
            return make(
                config,
                stat_loggers=[self._make_stats, *([] if self._settings.vllm_metrics else [NoMetrics])],
                enable_log_requests=args.enable_log_requests,
                disable_log_stats=args.disable_log_stats,
            )

    def _make_stats(self, _config: VllmConfig, _engine_index: int = 0) -> _Stats:
        return self._stats

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now."""
        return self._speculation.salt(cache_salt) if self._speculation else cache_salt

    def stats(self) -> EngineStats:
        """Return the counters as last reported. If the engine is shared, those of tokens are this process's own."""
        return EngineStats(
            num_running=self._stats.num_running,
            num_waiting=self._stats.num_waiting,
            num_generated_tokens=self._accounting.num_generated_tokens,
            num_aborted_tokens=self._accounting.num_aborted_tokens,
            kv_usage=self._stats.kv_usage,
            num_steps=self._stats.num_steps if self._shared is not None else None,
        )

    @property
    def speculation(self) -> SpeculationControl | None:
        """Changes K; see the interface."""
        return self._speculation if self.is_alive else None

    def watch_steps(self, on_step: Callable[[EngineStep], None]) -> None:
        """Call `on_step` after every step, whichever process its generations are of; see the interface."""
        self._accounting.meter.on_step = on_step

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of its processes; None on a GPU: a process that waits for the GPU uses as much."""
        return cpu_seconds(self._processes) if current_platform.is_cpu() else None

    def share(self) -> EngineShare | None:
        """Return what front ends need to attach; see the interface."""
        if self._shared is None or not self.is_alive:
            return None
        lookup = self._publisher.path if self._publisher is not None and not self._locked_reason else None
        return self._shared.share(self.info, lookup, has_spans=self._has_spans)

    async def abort_place(self, place: int) -> None:
        """Abort the generations of a front end whose process has ended; see the interface."""
        for wait_s in (0.0, _LAST_REQUESTS_S):
            await asyncio.sleep(wait_s)
            if self._llm is not None:
                with suppress(TimeoutError, VllmEngineDeadError):
                    async with asyncio.timeout(_ABORT_S):
                        ids = [requests_of(client_at(place))]
                        await self._llm.engine_core.call_utility_async("abort_requests", ids)

    async def stop(self) -> None:
        """Free everything, and kill the processes, which open generations have no more use for."""
        llm = await self._loading.give_up()
        self._disconnect()  # every open generation ends now, not when the core has gone
        if llm is not None:
            await asyncio.to_thread(self._discard, llm)

    def _discard(self, llm: AsyncLLM) -> None:
        """Kill the processes: vLLM's own way, which frees all that ends with them anyway, takes up to ten seconds."""
        processes = still_running(self._processes, _core_ids(llm))
        remnants = Remnants(processes)
        llm.shutdown(0)
        kill_and_wait(processes, _END_S)
        self._close_shared()
        remnants.remove()

    def _close_shared(self) -> None:
        """Unmap what is shared with the core, and remove what front ends need."""
        if self._publisher is not None:
            self._publisher.close()
        if self._shared is not None:
            self._shared.close()


def _core_ids(llm: AsyncLLM) -> list[int]:
    manager = llm.engine_core.resources.engine_manager
    return [process.pid for process in getattr(manager, "processes", ())]


def _reason(error: BaseException) -> str:
    """Return the line of an error that has the reason: pydantic puts a heading before it and a link behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = (line for line in lines if line.startswith("Value error, "))
    return next(reasons, lines[-1] if lines else type(error).__name__)
