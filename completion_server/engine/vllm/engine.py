"""vLLM as an engine.

The engine core runs in a process of its own; the server's process talks to it through `AsyncLLM`.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress

import psutil
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import (
    Engine,
    EngineDeadError,
    EngineInfo,
    EngineStats,
    EngineStep,
    GenerationRequest,
    Sink,
    SpeculationControl,
    SpeculationLookup,
    Work,
)
from completion_server.engine.loading import Loading
from completion_server.engine.processes import Remnants, cpu_seconds, kill_and_wait, still_running
from completion_server.engine.revisions import resolve_revisions
from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm import SET_LOOKUP
from completion_server.engine.vllm.arguments import (
    check_draft_length,
    engine_args,
    locked_reason,
    lookup_at_start,
    schedulers_locked_reason,
)
from completion_server.engine.vllm.conversion import LastStatistics, sampling_params
from completion_server.engine.vllm.environment import choose_model_runner, keep_on_loopback, without_spans
from completion_server.engine.vllm.generation import VllmGeneration, ignore, run_eagerly
from completion_server.engine.vllm.patches import log_patches
from completion_server.engine.vllm.patches.processes import sampled_spans, span_exporter
from completion_server.engine.vllm.process import yield_to_server
from completion_server.engine.vllm.token_accounting import GenerationProgress, TokenAccounting

SCHEDULERS_MODULE = "completion_server.engine.vllm.drafts.schedulers"
"""The module of the schedulers that the engine core loads."""

_NICE_ON_A_CPU = 5

_END_S = 5.0
"""How long killed processes may take to end."""


class VllmEngine(Engine):
    """One vLLM engine: one GPU, one tensor-parallel group, or a CPU."""

    def __init__(self, settings: EngineSettings, *, traces_endpoint: str = "") -> None:
        """Prepare; nothing is loaded before `start`.

        With `traces_endpoint`, the URL of a collector, vLLM makes spans of requests with trace headers. They go where
        this process's provider of OpenTelemetry sends them.
        """
        self._settings = settings
        self._traces_endpoint = traces_endpoint
        self._llm: AsyncLLM | None = None
        self._info: EngineInfo | None = None
        self._accounting = TokenAccounting()
        self._stats = LastStatistics(self._accounting.meter)
        self._locked_reason = ""
        self._can_heal = False
        self._changes: set[asyncio.Task[None]] = set()
        """Changes of K on their way to the engine core."""
        self._speculation: SpeculationControl | None = None
        self._loading = Loading(self._load, self._discard)
        self._processes: list[psutil.Process] = []

    @property
    def info(self) -> EngineInfo:
        """The loaded models and their limits."""
        if self._info is None:
            msg = "the engine has not started"
            raise EngineDeadError(msg)
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether the core has not been seen to die."""
        return self._llm is not None and not self._llm.errored

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The engine's processes on this machine."""
        return tuple(process.pid for process in self._processes)

    async def start(self) -> None:
        """Load the model. The event loop keeps running meanwhile."""
        try:
            llm = await self._loading.run()
            await llm.get_supported_tasks()  # kept by vLLM: else the first request would wait for the core
            if not self._locked_reason:
                self._locked_reason = await _set_lookup(llm, lookup_at_start(self._settings, llm.vllm_config, ""))
        except ConfigError:
            raise
        except Exception as error:
            msg = f"the engine did not start: {_reason(error)}"
            raise EngineDeadError(msg) from error
        self._processes = still_running((), _core_ids(llm))
        config = llm.vllm_config
        speculative = config.speculative_config
        info = self._info = EngineInfo(
            model=self._settings.model,
            max_model_len=config.model_config.max_model_len,
            draft_model=self._settings.draft_model if speculative else "",
            num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            speculation_lookup=lookup_at_start(self._settings, config, self._locked_reason),
            speculation_locked_reason=self._locked_reason,
            can_heal=self._can_heal,
        )
        self._llm = llm
        self._accounting.lookup = info.speculation_lookup
        self._accounting.watch(llm.output_processor)
        if self._traces_endpoint:
            sampled_spans.apply(llm.output_processor)
        # vLLM begins to read at the first request. But the core also sends news of its death.
        llm._run_output_handler()  # type: ignore[no-untyped-call]
        if not self._locked_reason:
            self._speculation = SpeculationControl(info, self._publish)

    def _publish(self, lookup: SpeculationLookup, is_off: bool) -> None:
        """Tell the engine core, and the accounting, which estimates the drafts of aborted generations from K."""
        self._accounting.lookup = lookup
        # At once: the core hears of a new K before it gets a prompt with the new salt.
        change = run_eagerly(self._change(lookup, is_off), ignore, ignore)
        if change is not None:
            self._changes.add(change)
            change.add_done_callback(self._changes.discard)

    async def _change(self, lookup: SpeculationLookup, is_off: bool) -> None:
        if self._llm is not None:
            with suppress(VllmEngineDeadError):  # the supervisor sees that by itself
                await _set_lookup(self._llm, lookup, is_off=is_off)

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
        unknown = schedulers_locked_reason(SCHEDULERS_MODULE)
        self._locked_reason = locked_reason(self._settings, config) or unknown
        self._can_heal = not unknown and not self._settings.vllm.get("scheduler_cls")
        log_patches(
            is_cpu=current_platform.is_cpu(), is_k_live=not self._locked_reason, has_spans=bool(self._traces_endpoint)
        )
        if self._can_heal:
            scheduling = "AsyncScheduler" if config.scheduler_config.async_scheduling else "Scheduler"
            kind = "Healing" if self._locked_reason else "Lookup"
            config.scheduler_config.scheduler_cls = f"{SCHEDULERS_MODULE}.{kind}{scheduling}"
        return self._make_llm(args, config)

    def _make_llm(self, args: AsyncEngineArgs, config: VllmConfig) -> AsyncLLM:
        self._loading.check()
        with ExitStack() as stack:
            if self._traces_endpoint:
                stack.callback(span_exporter.apply())
                stack.enter_context(without_spans())
            return AsyncLLM.from_vllm_config(
                config,
                stat_loggers=[self._make_stats],
                enable_log_requests=args.enable_log_requests,
                disable_log_stats=args.disable_log_stats,
            )

    def _make_stats(self, _config: VllmConfig, _engine_index: int = 0) -> LastStatistics:
        return self._stats

    def submit(self, request: GenerationRequest, sink: Sink) -> Work:
        """Begin to generate; see the interface."""
        llm = self._llm
        if llm is None:
            msg = "the engine is not running"
            raise EngineDeadError(msg)
        speculates = request.sampling.speculate or bool(self._locked_reason)
        parameters = sampling_params(request)
        progress = self._accounting.progress[request.id] = GenerationProgress(speculates)
        salt = self._speculation.salt(request.cache_salt) if self._speculation else request.cache_salt
        prompt = tokens_input(request.prompt_token_ids, cache_salt=salt or None)
        headers = request.trace_headers if self._traces_endpoint else None
        adding = llm.add_request(request.id, prompt, parameters, priority=request.priority, trace_headers=headers)
        generation = VllmGeneration(llm, self._accounting, request, progress, sink)
        generation.begin(adding)
        return generation

    def stats(self) -> EngineStats:
        """Return the counters as last reported."""
        return EngineStats(
            num_running=self._stats.num_running,
            num_waiting=self._stats.num_waiting,
            num_generated_tokens=self._accounting.num_generated_tokens,
            num_aborted_tokens=self._accounting.num_aborted_tokens,
            kv_usage=self._stats.kv_usage,
        )

    @property
    def speculation(self) -> SpeculationControl | None:
        """Changes K; see the interface."""
        return self._speculation if self.is_alive else None

    def watch_steps(self, on_step: Callable[[EngineStep], None]) -> None:
        """Call `on_step` after every step; see the interface."""
        self._accounting.meter.on_step = on_step

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of its processes; None on a GPU: a process that waits for the GPU uses as much."""
        return cpu_seconds(self._processes) if current_platform.is_cpu() else None

    async def stop(self) -> None:
        """Free everything, and kill the processes, which open generations have no more use for."""
        llm, self._llm = await self._loading.give_up(), None
        for change in self._changes:
            change.cancel()  # a core that hangs never answers
        if llm is not None:
            # Every open generation ends now, not when the core has gone.
            try:
                llm.output_processor.propagate_error(VllmEngineDeadError())
                if llm.output_handler is not None:
                    llm.output_handler.cancel()
            finally:
                await asyncio.to_thread(self._discard, llm)

    def _discard(self, llm: AsyncLLM) -> None:
        """Kill the processes: vLLM's own way, which frees all that ends with them anyway, takes up to ten seconds."""
        processes = still_running(self._processes, _core_ids(llm))
        remnants = Remnants(processes)
        llm.shutdown(0)
        kill_and_wait(processes, _END_S)
        remnants.remove()


async def _set_lookup(llm: AsyncLLM, lookup: SpeculationLookup, *, is_off: bool = False) -> str:
    """Set K by number of sequences, and whether the draft model does not run; return why that can't be, or ""."""
    entries = [int(not is_off), *lookup[1:]]
    return str(await llm.engine_core.call_utility_async(SET_LOOKUP, entries))


def _core_ids(llm: AsyncLLM) -> list[int]:
    manager = llm.engine_core.resources.engine_manager
    return [process.pid for process in getattr(manager, "processes", ())]


def _reason(error: BaseException) -> str:
    """Return the line of an error that has the reason: pydantic puts a heading before it and a link behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = (line for line in lines if line.startswith("Value error, "))
    return next(reasons, lines[-1] if lines else type(error).__name__)
