"""vLLM behind the engine interface: with the schedulers beside it, the only file that imports vllm and torch.

The engine core runs in a process of its own; this side talks to it through `AsyncLLM`. Nothing here knows why a
generation was asked for or who waits for it.
"""

import asyncio
import contextlib
import dataclasses
import difflib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import EngineDeadError, EngineInfo, EngineStats, Job, Output, Step
from completion_server.engine.settings import EngineSettings
from completion_server.engine.speculation import Schedule, ScheduleError, SpeculationFixedError, parse_schedule
from completion_server.engine.speculation_table import MAX_DRAFT_TOKENS, LiveTable
from completion_server.engine.vllm_accounts import Accounts, Progress, StepMeter
from completion_server.engine.vllm_process import yield_to_server

T = TypeVar("T")

_OWN_KEYS = (
    "model", "revision", "dtype", "max_model_len", "max_num_seqs", "tensor_parallel_size", "trust_remote_code",
    "enforce_eager",
)  # fmt: skip
"""Arguments that `[engine]` has a key of the same name for."""

_FINISH = {"stop": "stop", "repetition": "stop", "length": "length"}
"""vLLM's finish reasons in the interface's words; with any other ("abort", "error") it gave a generation up."""

_SCHEDULERS = "completion_server.engine.vllm_speculation"

_NICE_ON_A_CPU = 5

_STOP_GRACE_S = 10.0
"""How long a core may take to end by itself; one that hangs is killed after it."""


def engine_args(settings: EngineSettings) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's AsyncEngineArgs that the settings mean.

    Raises:
        ConfigError: `[engine.vllm]` has a key that vLLM does not know, or one that has a place in `[engine]`.

    """
    args: dict[str, Any] = {
        "model": settings.model,
        "revision": settings.revision,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "trust_remote_code": settings.trust_remote_code,
        "enforce_eager": current_platform.is_cpu() if settings.enforce_eager is None else settings.enforce_eager,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "use_tqdm_on_load": False,
    }
    if settings.draft_model and settings.num_speculative_tokens:
        args["per_request_spec_decode_metrics"] = "summary"
        args["speculative_config"] = {
            "method": "draft_model",
            "model": settings.draft_model,
            "num_speculative_tokens": settings.num_speculative_tokens,
        }
        if not _fixed_by(settings):  # a schedule tells vLLM that K varies; what it says is the same as none
            row = [1, settings.max_num_seqs, settings.num_speculative_tokens]
            args["speculative_config"]["num_speculative_tokens_per_batch_size"] = [row]
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for key in settings.vllm:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"engine.vllm.{key}: vLLM has no such engine argument{hint}"
            raise ConfigError(msg)
        if key in _OWN_KEYS:
            msg = f"engine.vllm.{key}: set engine.{key} instead"
            raise ConfigError(msg)
    return args | settings.vllm


def _fixed_by(settings: EngineSettings) -> str:
    """Return why these settings keep K as it is at start; "" where they don't."""
    if int(settings.vllm.get("data_parallel_size") or 1) > 1:
        return "vLLM keeps the draft length fixed under data parallelism"
    if settings.vllm.get("scheduler_cls"):
        return "engine.vllm.scheduler_cls names a scheduler of another make"
    if settings.num_speculative_tokens > MAX_DRAFT_TOKENS:
        return f"engine.num_speculative_tokens is over {MAX_DRAFT_TOKENS}"
    return ""


def _fixed_because(settings: EngineSettings, config: VllmConfig) -> str:
    """Return why K can't be changed on an engine of this configuration; "" where it can."""
    speculative = config.speculative_config
    if speculative is None:
        return "the engine was started without a draft model"
    if speculative.num_speculative_tokens_per_batch_size is None:
        return _fixed_by(settings) or "engine.vllm.speculative_config has no num_speculative_tokens_per_batch_size"
    return _fixed_by(settings)


def _schedule_at_start(config: VllmConfig) -> Schedule:
    """Return the schedule that vLLM starts with."""
    speculative = config.speculative_config
    if speculative is None:
        return Schedule.fixed(0, config.scheduler_config.max_num_seqs)
    ceiling = speculative.num_speculative_tokens
    with contextlib.suppress(ScheduleError):  # vLLM takes some that have gaps
        return parse_schedule(speculative.num_speculative_tokens_per_batch_size or (), ceiling)
    return Schedule.fixed(ceiling, config.scheduler_config.max_num_seqs)


class _Stats(StatLoggerBase):
    """Keeps the scheduler's last word. vLLM calls it after each step that had news."""

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        self.num_running = 0
        self.num_waiting = 0
        self.kv_usage = 0.0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        if scheduler_stats is not None:
            self.num_running = scheduler_stats.num_running_reqs
            self.num_waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            self._meter.end(scheduler_stats.spec_decoding_stats, goes_on=self.num_running > 0)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


class VllmEngine:
    """One vLLM engine: one GPU, one tensor-parallel group, or a CPU."""

    def __init__(self, settings: EngineSettings) -> None:
        """Prepare; nothing is loaded before `start`."""
        self._settings = settings
        self._llm: AsyncLLM | None = None
        self._info: EngineInfo | None = None
        self._stats: _Stats | None = None
        self._accounts = Accounts()
        self._schedule = Schedule.fixed(0, settings.max_num_seqs)
        self._table: LiveTable | None = None
        self._fixed_because = ""
        self._pids: tuple[int, ...] = ()

    @property
    def info(self) -> EngineInfo:
        """What was loaded."""
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
        """The engine core's processes on this machine."""
        return self._pids

    async def start(self) -> None:
        """Load the model. The event loop keeps running meanwhile."""
        try:
            self._llm = await _in_daemon_thread(self._load)
        except ConfigError:
            raise
        except Exception as error:
            msg = f"the engine did not start: {_reason(error)}"
            raise EngineDeadError(msg) from error
        self._accounts.watch(self._llm.output_processor)
        manager = self._llm.engine_core.resources.engine_manager
        self._pids = tuple(process.pid for process in getattr(manager, "processes", ()))
        config = self._llm.vllm_config
        speculative = config.speculative_config
        self._info = EngineInfo(
            model=self._settings.model,
            max_model_len=config.model_config.max_model_len,
            draft_model=self._settings.draft_model if speculative else "",
            num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            speculation_fixed_because=self._fixed_because,
        )
        self._put_in_force(_schedule_at_start(config))

    def _load(self) -> AsyncLLM:
        nice = self._settings.nice
        yield_to_server((_NICE_ON_A_CPU if current_platform.is_cpu() else 0) if nice is None else nice)
        args = AsyncEngineArgs(**engine_args(self._settings))
        config = args.create_engine_config(UsageContext.ENGINE_CONTEXT)
        self._fixed_because = _fixed_because(self._settings, config)
        if self._fixed_because:
            return self._make_llm(args, config)
        scheduler = "LiveAsyncScheduler" if config.scheduler_config.async_scheduling else "LiveScheduler"
        config.scheduler_config.scheduler_cls = f"{_SCHEDULERS}.{scheduler}"
        self._table = LiveTable(config.scheduler_config.max_num_seqs)
        with self._table.offered():
            llm = self._make_llm(args, config)
        self._fixed_because = self._table.unfollowed_because
        return llm

    def _make_llm(self, args: AsyncEngineArgs, config: VllmConfig) -> AsyncLLM:
        return AsyncLLM.from_vllm_config(
            config,
            stat_loggers=[self._make_stats],
            enable_log_requests=args.enable_log_requests,
            disable_log_stats=args.disable_log_stats,
        )

    def _make_stats(self, _vllm_config: Any, _engine_index: int = 0) -> _Stats:
        self._stats = _Stats(self._accounts.meter)
        return self._stats

    async def generate(self, job: Job) -> AsyncGenerator[Output]:
        """Generate; see the interface."""
        llm = self._llm
        if llm is None:
            msg = "the engine is not running"
            raise EngineDeadError(msg)
        progress = self._accounts.progress[job.id] = Progress()
        prompt = tokens_input(job.prompt_token_ids, cache_salt=job.cache_salt or None)
        stream = llm.generate(prompt, _sampling_params(job), job.id, priority=job.priority)
        try:
            async for result in stream:
                yield self._output(result, progress)
        except VllmEngineDeadError as error:
            msg = "the engine died"
            raise EngineDeadError(msg) from error
        finally:
            # First forget it, so that what the engine still computes for it counts as unwanted; then abort it.
            self._accounts.progress.pop(job.id, None)
            await stream.aclose()

    def _output(self, result: RequestOutput, progress: Progress) -> Output:
        completion = result.outputs[0]
        finish = None
        if result.finished:
            finish = _FINISH.get(str(completion.finish_reason))
            if finish is None:
                msg = f"the engine gave a generation up: {completion.finish_reason}"
                raise EngineDeadError(msg)
        return Output(
            text=completion.text,
            num_tokens=len(completion.token_ids),
            finish=finish,
            cached_prompt_tokens=result.num_cached_tokens or 0,
            drafted_tokens=progress.drafted(),
            accepted_draft_tokens=progress.accepted(),
        )

    def stats(self) -> EngineStats:
        """Return the counters as last reported."""
        stats = self._stats
        return EngineStats(
            num_running=stats.num_running if stats else 0,
            num_waiting=stats.num_waiting if stats else 0,
            num_generated_tokens=self._accounts.num_generated_tokens,
            num_unwanted_tokens=self._accounts.num_unwanted_tokens,
            kv_usage=stats.kv_usage if stats else 0.0,
        )

    @property
    def speculation(self) -> Schedule:
        """The draft lengths in force."""
        return self._schedule

    def set_speculation(self, schedule: Schedule) -> None:
        """Change the draft lengths from the next step on; see the interface."""
        if self._llm is None or self._info is None:
            msg = "the engine is not running"
            raise EngineDeadError(msg)
        if self._fixed_because:
            raise SpeculationFixedError(self._fixed_because)
        schedule.check_ceiling(self._info.num_speculative_tokens)
        self._put_in_force(schedule)

    def _put_in_force(self, schedule: Schedule) -> None:
        """Tell the engine core, and the accounts, which estimate from it what an aborted generation's drafts were."""
        self._schedule = schedule
        self._accounts.lookup = schedule.lookup(self.info.max_num_seqs)
        if self._table is not None and not self._fixed_because:
            self._table.write(self._accounts.lookup)

    def watch_steps(self, on_step: Callable[[Step], None]) -> None:
        """Tell of every step; see the interface."""
        self._accounts.meter.on_step = on_step

    async def stop(self) -> None:
        """Free everything. A core that does not answer is killed."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        # Every open generation ends now, not when the core has gone.
        llm.output_processor.propagate_error(VllmEngineDeadError())
        if llm.output_handler is not None:
            llm.output_handler.cancel()
        await asyncio.to_thread(llm.shutdown, _STOP_GRACE_S)
        if self._table is not None:
            self._table.close()


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """Run work that can't be interrupted in a thread for which neither a cancelled task nor the process's end waits."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not done.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            outcome: tuple[Callable[[Any], None], object] = (done.set_exception, error)
        else:
            outcome = (done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, daemon=True, name="engine-load").start()
    return await done


def _sampling_params(job: Job) -> SamplingParams:
    return SamplingParams(
        max_tokens=job.max_tokens,
        temperature=job.sampling.temperature,
        seed=job.sampling.seed,
        stop_token_ids=list(job.stop_token_ids) or None,
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.DELTA,
        skip_special_tokens=True,
    )


def _reason(error: BaseException) -> str:
    """Return the line of an error that says why: pydantic puts a heading before it and a link behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = (line for line in lines if line.startswith("Value error, "))
    return next(said, lines[-1] if lines else type(error).__name__)
