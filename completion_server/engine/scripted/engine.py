"""A deterministic engine: says what a script says, in the time that a service-time model gives.

It steps a batch as a continuous-batching engine does: each step admits what waits by priority, then computes one more
token for each generation that decodes and as much of the prompts as still fits the step. Time is the event loop's, so
that it runs unchanged where that is virtual. Knows nothing of requests or users.

Left out: the KV cache of a generation is reserved as a whole when it is admitted, so nothing is preempted; generated
tokens do not enter the prefix cache; live prompts are not pinned in it.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable

from completion_server.engine.interface import EngineDeadError, EngineInfo, EngineStats, GenerationRequest, Output, Step
from completion_server.engine.scripted.generation import Generation, Tally
from completion_server.engine.scripted.model import (
    BLOCK_TOKENS,
    INSTANT,
    LARGE_MODEL_ON_A_GPU,
    SERVICE_TIMES,
    SMALL_MODEL_ON_TWO_CORES,
    PrefixCache,
    Script,
    ServiceTimes,
    Token,
    plausible_code,
)
from completion_server.engine.settings import EngineSettings
from completion_server.speculation.schedule import Schedule, SpeculationFixedError

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


class ScriptedEngine:
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
    ) -> None:
        """Prepare.

        `max_num_batched_tokens` bounds what one step computes: longer prompts take several. `acceptance_rate` is the
        chance of each draft token given that those before it were accepted.
        """
        self._script = script
        self._times = times
        self._info = EngineInfo(
            model=model,
            max_model_len=max_model_len,
            draft_model="scripted-draft" if num_speculative_tokens else "",
            num_speculative_tokens=num_speculative_tokens,
            max_num_seqs=max_num_seqs,
            speculation_fixed_because="" if num_speculative_tokens else "the engine was started without a draft model",
        )
        self._schedule = Schedule.fixed(num_speculative_tokens, max_num_seqs)
        self._lookup = self._schedule.lookup(max_num_seqs)
        self._on_step: Callable[[Step], None] = _ignore
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_kv_blocks = num_kv_blocks
        self._seed = seed
        self._cache = PrefixCache(num_kv_blocks)
        self._open: dict[str, Generation] = {}
        self._waiting: list[tuple[int, int, Generation]] = []
        self._num_waiting = 0
        self._running: list[Generation] = []
        self._num_arrived = 0
        self._num_used_blocks = 0
        self._num_generated_tokens = 0
        self._num_wasted_tokens = 0
        self._loop_task: asyncio.Task[None] | None = None
        self._has_work = asyncio.Event()
        self._is_awake = asyncio.Event()
        self._is_awake.set()
        self._death = ""
        self.acceptance_rate = acceptance_rate
        """The chance of each draft token; may change while it runs, as when a user turns from code to prose."""
        self.num_steps = 0
        """Steps taken since start."""

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "ScriptedEngine":
        """Return an engine of the configured size and pace."""
        return cls(
            times=SERVICE_TIMES[settings.scripted_times],
            model=settings.model or "scripted",
            max_model_len=settings.max_model_len or _MAX_MODEL_LEN,
            max_num_seqs=settings.max_num_seqs,
            num_speculative_tokens=settings.num_speculative_tokens if settings.draft_model else 0,
            acceptance_rate=settings.scripted_acceptance,
        )

    @property
    def info(self) -> EngineInfo:
        """What was loaded."""
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

    async def generate(self, job: GenerationRequest) -> AsyncGenerator[Output]:
        """Generate; see the interface.

        Raises:
            EngineDeadError: it died before the generation ended.
            ValueError: the prompt does not fit, or a generation of this id is open.

        """
        generation = self._submit(job)
        try:
            while True:
                output = await generation.take()
                yield output
                if output.finish is not None:
                    return
        finally:
            self._abort(generation)

    def stats(self) -> EngineStats:
        """Return the counters."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=self._num_waiting,
            num_generated_tokens=self._num_generated_tokens,
            num_wasted_tokens=self._num_wasted_tokens,
            kv_usage=self._num_used_blocks / self._num_kv_blocks,
        )

    @property
    def speculation(self) -> Schedule:
        """The draft lengths in force."""
        return self._schedule

    def set_speculation(self, schedule: Schedule) -> None:
        """Change the draft lengths from the next step on; see the interface."""
        if not self.is_alive:
            raise EngineDeadError(self._death or "the engine has not started")
        if self._info.speculation_fixed_because:
            raise SpeculationFixedError(self._info.speculation_fixed_because)
        schedule.check_ceiling(self._info.num_speculative_tokens)
        self._schedule = schedule
        self._lookup = schedule.lookup(self._info.max_num_seqs)

    def watch_steps(self, on_step: Callable[[Step], None]) -> None:
        """Tell of every step; see the interface."""
        self._on_step = on_step

    def cpu_seconds(self) -> float | None:
        """Return None: it computes nothing."""
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
        for generation in self._open.values():
            if not generation.is_over:
                generation.fail(EngineDeadError(self._death))
        self._open.clear()
        self._waiting.clear()
        self._running.clear()
        self._num_waiting = self._num_used_blocks = 0

    def hang(self) -> None:
        """Stop in the middle of a step: no more outputs until `resume`."""
        self._is_awake.clear()

    def resume(self) -> None:
        """Go on after `hang`."""
        self._is_awake.set()

    def _see_end(self, task: asyncio.Task[None]) -> None:
        """Die of what ended the loop, such as an error in the script."""
        if not task.cancelled():
            self.crash(f"the engine failed: {task.exception()!r}")

    def _submit(self, job: GenerationRequest) -> Generation:
        if not self.is_alive:
            raise EngineDeadError(self._death or "the engine has not started")
        max_tokens = min(job.max_tokens, self._info.max_model_len - len(job.prompt_token_ids))
        if not job.prompt_token_ids or max_tokens < 1:
            msg = f"a prompt of {len(job.prompt_token_ids)} tokens leaves no room in {self._info.max_model_len}"
            raise ValueError(msg)
        if job.id in self._open:
            msg = f"a generation {job.id!r} is open already"
            raise ValueError(msg)
        generation = Generation(job, max_tokens, iter(self._script(job)), self._seed)
        if generation.num_blocks > self._num_kv_blocks:
            msg = f"{generation.num_blocks} blocks do not fit into {self._num_kv_blocks}"
            raise ValueError(msg)
        self._open[job.id] = generation
        self._num_arrived += 1
        self._num_waiting += 1
        heapq.heappush(self._waiting, (job.priority, self._num_arrived, generation))
        self._has_work.set()
        return generation

    def _abort(self, generation: Generation) -> None:
        """Take a generation out of the queue at once, or out of the batch at the end of the step."""
        if self._open.get(generation.job.id) is not generation:
            return
        del self._open[generation.job.id]
        if not generation.is_over:
            generation.is_aborted = True
            self._num_waiting -= not generation.is_running

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            self._admit()
            num_draft_tokens = self._lookup[len(self._running)]
            num_prefill_tokens, num_decoding = self._plan(num_draft_tokens)
            step_s = self._times.step_s(num_prefill_tokens, num_decoding, num_draft_tokens)
            await asyncio.sleep(step_s or self._prompt_due_s())
            await self._is_awake.wait()
            self._end_step(num_draft_tokens, step_s)

    def _admit(self) -> None:
        """Move what waits into the batch, while there are slots and memory."""
        while self._waiting and len(self._running) < self._info.max_num_seqs:
            generation = self._waiting[0][2]
            if not generation.is_aborted:
                if self._num_used_blocks + generation.num_blocks > self._num_kv_blocks:
                    return
                job = generation.job
                num_blocks = self._cache.num_cached(generation.blocks, job.cache_salt)
                # The last token is computed in any case.
                num_blocks = min(num_blocks, (len(job.prompt_token_ids) - 1) // BLOCK_TOKENS)
                generation.num_cached = num_blocks * BLOCK_TOKENS
                generation.num_prompt_left -= generation.num_cached
                generation.is_running = True
                generation.prompt_due_at = asyncio.get_running_loop().time() + self._times.prefill_apart_s
                self._running.append(generation)
                self._num_used_blocks += generation.num_blocks
                self._num_waiting -= 1
            heapq.heappop(self._waiting)

    def _plan(self, num_draft_tokens: int) -> tuple[int, int]:
        """Share a step out, decoding first; return its prompt tokens and how many generations decode."""
        if self._times.prefill_apart_s:
            return self._plan_apart()
        num_decoding = 0
        for generation in self._running:
            generation.is_decoding = generation.num_prompt_left == 0
            num_decoding += generation.is_decoding
        budget = self._max_num_batched_tokens - num_decoding * (1 + num_draft_tokens)
        num_prefill_tokens = 0
        for generation in self._running:
            num = max(0, min(generation.num_prompt_left, budget - num_prefill_tokens))
            generation.num_prompt_now = num
            num_prefill_tokens += num
        return num_prefill_tokens, num_decoding

    def _plan_apart(self) -> tuple[int, int]:
        """Take in the prompts that were computed elsewhere meanwhile; their first token is decoded like any other."""
        now = asyncio.get_running_loop().time()
        num_decoding = 0
        for generation in self._running:
            generation.is_decoding = generation.num_prompt_left == 0
            is_due = not generation.is_decoding and generation.prompt_due_at <= now
            generation.num_prompt_now = generation.num_prompt_left if is_due else 0
            num_decoding += generation.is_decoding or is_due
        return 0, num_decoding

    def _prompt_due_s(self) -> float:
        """Return how long to wait where there is nothing to step: until a prompt is there, but look for others, too."""
        if not self._times.prefill_apart_s or not self._running:
            return 0.0
        due_at = min(generation.prompt_due_at for generation in self._running)
        return min(self._times.decode_base_s, max(0.0, due_at - asyncio.get_running_loop().time()))

    def _end_step(self, num_draft_tokens: int, step_s: float) -> None:
        """Hand out what the step computed, and drop what ended or was aborted."""
        self.num_steps += bool(self._running)
        tally = Tally(num_draft_tokens)
        still_running = []
        for generation in self._running:
            num_tokens = self._num_computed(generation, tally)
            if generation.is_aborted:
                self._num_wasted_tokens += num_tokens
            elif num_tokens:
                num_tokens = generation.write(num_tokens)
            tally.add_tokens(num_tokens)
            if generation.is_aborted or generation.is_over:
                self._num_used_blocks -= generation.num_blocks
            else:
                still_running.append(generation)
        self._running = still_running
        self._num_generated_tokens += tally.num_tokens
        if tally.num_tokens:
            self._on_step(tally.step(step_s))
        if not self._running and not self._num_waiting:
            self._waiting.clear()
            self._has_work.clear()

    def _num_computed(self, generation: Generation, tally: Tally) -> int:
        """Return how many tokens the step computed for a generation."""
        if generation.is_decoding:
            if not generation.job.sampling.speculate:
                tally.has_undrafted = True
                return 1
            num_accepted = generation.num_accepted_of(tally.num_draft_tokens, self.acceptance_rate)
            tally.add_draft(num_accepted)
            return generation.num_room(1 + num_accepted)
        generation.num_prompt_left -= generation.num_prompt_now
        tally.has_prompts |= generation.num_prompt_now > 0
        if generation.num_prompt_left:
            return 0
        self._cache.insert(generation.blocks, generation.job.cache_salt)
        return 1


def _ignore(_step: Step) -> None:
    """Nobody watches the steps."""
