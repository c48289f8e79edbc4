"""A deterministic engine: the text comes from a script, the durations from a service-time model.

It steps a batch as a continuous-batching engine does: each step admits waiting generations by priority, then computes
one more token for each generation that decodes and as much of the prompts as still fits the step. Time is the event
loop's, so that the engine also runs in virtual time. Knows nothing of users.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from completion_server.engine.interface import (
    Engine,
    EngineDeadError,
    EngineInfo,
    EngineStats,
    EngineStep,
    GenerationRequest,
    Sink,
    SpeculationControl,
    Work,
    constant_lookup,
)
from completion_server.engine.scripted.batch import ScriptedBatch, ScriptedGeneration
from completion_server.engine.scripted.model import (
    INSTANT,
    LARGE_MODEL_ON_A_GPU,
    SERVICE_TIMES,
    SMALL_MODEL_ON_TWO_CORES,
    Script,
    ServiceTimes,
    Token,
    plausible_code,
)
from completion_server.engine.settings import EngineSettings

__all__ = [
    "INSTANT",
    "LARGE_MODEL_ON_A_GPU",
    "SMALL_MODEL_ON_TWO_CORES",
    "Script",
    "ScriptedEngine",
    "ServiceTimes",
    "Token",
    "plausible_code",
]

_MAX_MODEL_LEN = 8192
_NO_DRAFT = "the engine was started without a draft model"


class ScriptedEngine(Engine):
    """An engine without a model."""

    def __init__(
        self,
        script: Script = plausible_code,
        times: ServiceTimes = INSTANT,
        *,
        model: str = "scripted",
        max_model_len: int = _MAX_MODEL_LEN,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        num_kv_blocks: int = 8192,
        num_speculative_tokens: int = 0,
        acceptance_rate: float = 0.7,
        seed: int = 0,
        lengthen: Callable[[float], float] = float,
    ) -> None:
        """Prepare.

        `max_num_batched_tokens` bounds the tokens of one step: longer prompts take several steps. `acceptance_rate` is
        the chance of each draft token, given that those before it were accepted. `lengthen` returns the time that a
        step takes beside other work on the machine, from the time that it takes alone.
        """
        self._script = script
        self._times = times
        self._info = _describe(model, max_model_len, max_num_seqs, num_speculative_tokens)
        self._speculation = SpeculationControl(self._info)
        self._on_step: Callable[[EngineStep], None] = _ignore
        self._batch = ScriptedBatch(times, max_num_seqs, max_num_batched_tokens, num_kv_blocks)
        self._seed = seed
        self._lengthen = lengthen
        self._open: dict[str, ScriptedGeneration] = {}
        self._loop_task: asyncio.Task[None] | None = None
        self._has_work = asyncio.Event()
        self._is_awake = asyncio.Event()
        self._is_awake.set()
        self._death = ""
        self.acceptance_rate = acceptance_rate
        """The chance of each draft token; may change at run time, as when a user turns from code to prose."""
        self.num_steps = 0
        """Steps taken since start."""

    @classmethod
    def from_settings(cls, settings: EngineSettings, script: Script = plausible_code) -> "ScriptedEngine":
        """Return an engine of the configured size and service times."""
        return cls(
            script,
            times=SERVICE_TIMES[settings.scripted_times],
            model=settings.model or "scripted",
            max_model_len=settings.max_model_len or _MAX_MODEL_LEN,
            max_num_seqs=settings.max_num_seqs,
            num_kv_blocks=settings.scripted_kv_blocks,
            num_speculative_tokens=settings.num_speculative_tokens if settings.draft_model else 0,
            acceptance_rate=settings.scripted_acceptance,
        )

    @property
    def info(self) -> EngineInfo:
        """The configured sizes."""
        if self._loop_task is None:
            raise EngineDeadError("the engine has not started")
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether it has started, and neither crashed nor stopped."""
        return self._loop_task is not None and not self._death

    async def start(self) -> None:
        """Be ready after `start_s`; see the interface."""
        if self._loop_task is not None:
            raise RuntimeError("an engine starts once")
        await asyncio.sleep(self._times.start_s)
        if self._death:
            raise EngineDeadError(self._death)
        self._loop_task = asyncio.create_task(self._run(), name="scripted engine")
        self._loop_task.add_done_callback(self._see_end)

    def stats(self) -> EngineStats:
        """Return the counters."""
        batch = self._batch
        return EngineStats(
            num_running=batch.num_running,
            num_waiting=batch.num_waiting,
            num_generated_tokens=batch.num_generated_tokens,
            num_aborted_tokens=batch.num_aborted_tokens,
            kv_usage=batch.kv_usage,
        )

    @property
    def speculation(self) -> SpeculationControl | None:
        """Changes K; see the interface."""
        return self._speculation if self.is_alive and not self._info.speculation_locked_reason else None

    def watch_steps(self, on_step: Callable[[EngineStep], None]) -> None:
        """Call `on_step` after every step; see the interface."""
        self._on_step = on_step

    def cpu_seconds(self) -> float | None:
        """Return None: there is no process that computes."""
        return None

    async def stop(self) -> None:
        """Free everything; open generations get EngineDeadError."""
        self.crash("the engine was stopped")
        if self._loop_task is not None:
            await asyncio.wait([self._loop_task])

    def crash(self, reason: str = "the engine crashed") -> None:
        """Die: every open generation gets EngineDeadError, and so does every later one. Before `start`, it fails."""
        self._death = self._death or reason
        if self._loop_task is not None:
            self._loop_task.cancel()
        self._batch.clear()
        failed, self._open = self._open, {}
        for generation in failed.values():
            generation.is_aborted = True
            generation.sink.fail(EngineDeadError(self._death))

    def hang(self) -> None:
        """Stop in the middle of a step: no more outputs until `resume`."""
        self._is_awake.clear()

    def resume(self) -> None:
        """Continue after `hang`."""
        self._is_awake.set()

    def _see_end(self, task: asyncio.Task[None]) -> None:
        """Crash with the error that ended the loop, such as one in the script."""
        if not task.cancelled():
            self.crash(f"the engine failed: {task.exception()!r}")

    def submit(self, request: GenerationRequest, sink: Sink) -> Work:
        """Begin to generate; see the interface.

        Raises:
            EngineDeadError: it is not alive.
            ValueError: the prompt does not fit, or a generation of this id is open.

        """
        if not self.is_alive:
            raise EngineDeadError(self._death or "the engine has not started")
        num_prompt_tokens = len(request.prompt_token_ids)
        max_tokens = min(request.max_tokens, self._info.max_model_len - num_prompt_tokens)
        if not request.prompt_token_ids or max_tokens < 1:
            msg = f"a prompt of {num_prompt_tokens} tokens leaves no room in {self._info.max_model_len}"
            raise ValueError(msg)
        if request.id in self._open:
            msg = f"a generation {request.id!r} is open already"
            raise ValueError(msg)
        salt = self._speculation.salt(request.cache_salt)
        if salt != request.cache_salt:
            request = replace(request, cache_salt=salt)
        generation = ScriptedGeneration(request, sink, max_tokens, iter(self._script(request)), self._seed)
        self._batch.add(generation)
        self._open[request.id] = generation
        self._has_work.set()
        return _OpenGeneration(self, generation)

    def _abort(self, generation: ScriptedGeneration) -> None:
        if self._open.get(generation.request.id) is generation:
            del self._open[generation.request.id]
            self._batch.abort(generation)

    async def _run(self) -> None:
        loop, batch = asyncio.get_running_loop(), self._batch
        while True:
            await self._has_work.wait()
            batch.admit(loop.time())
            num_speculative_tokens = self._speculation.lookup[batch.num_running]
            step_s = batch.plan(num_speculative_tokens, loop.time())
            step_s = self._lengthen(step_s) if step_s else 0.0
            await asyncio.sleep(step_s or batch.idle_s(loop.time()))
            await self._is_awake.wait()
            self.num_steps += batch.num_running > 0
            step = batch.finish_step(num_speculative_tokens, self.acceptance_rate, step_s or None)
            if step.num_tokens:
                self._on_step(step)
            if batch.is_empty:
                self._has_work.clear()
            written, batch.written = batch.written, []
            for generation in written:
                if generation.is_over:
                    self._open.pop(generation.request.id, None)
                generation.deliver()


@dataclass(frozen=True, slots=True)
class _OpenGeneration:
    """The work of one generation."""

    engine: ScriptedEngine
    generation: ScriptedGeneration

    def abort(self) -> None:
        """Stop; see the interface."""
        self.engine._abort(self.generation)


def _ignore(_step: EngineStep) -> None:
    """Ignore a step."""


def _describe(model: str, max_model_len: int, max_num_seqs: int, num_speculative_tokens: int) -> EngineInfo:
    """Return what the engine says of itself."""
    return EngineInfo(
        model=model,
        max_model_len=max_model_len,
        draft_model="scripted-draft" if num_speculative_tokens else "",
        num_speculative_tokens=num_speculative_tokens,
        max_num_seqs=max_num_seqs,
        speculation_lookup=constant_lookup(num_speculative_tokens, max_num_seqs),
        speculation_locked_reason="" if num_speculative_tokens else _NO_DRAFT,
    )
