"""The engines that a simulation can run: their times, the size of their requests, other work on their processors."""

import asyncio
import json
import random
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from completion_server.engine.interface import (
    Engine,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    Output,
    Sink,
    Work,
)
from completion_server.engine.scripted.model import LARGE_MODEL_ON_A_GPU, ServiceTimes

SIMULATED_TOKENS = tuple(f" {number}" for number in range(256))
"""The text of every completion: without repetition, which the server's text rules would end."""

_NO_DRAFT = "the simulated slots have no draft"
_NUM_FULL = 16
"""Generations at once with which a measured engine's capacity counts, as in `bench-scheduler`."""
_REQUEST_CPU_S = 2e-3
"""Half of the CPU time of the server's process (3.4 ms) and of the load tester (0.8 ms) for a request, because the
engine's worker has one of two cores; provisional, by `bench-scheduler` at twice the load on a busy machine."""
_FRONT_END_S = 8e-3
"""What a request takes beside its two steps at half load; provisional."""


class SlotEngine(Engine):
    """Independent slots. A request yields its first token, then all others at the time of the last one.

    In a real engine, and in `ScriptedEngine`, a prompt delays the tokens of its batch. Here requests don't delay each
    other, so that a run shows the policy's effect alone. An aborted request stops at once, not at the end of a step.
    """

    def __init__(self, times: ServiceTimes) -> None:
        """Take step times from `times`."""
        self._prefill_s = times.step_s(1, 0, 0)
        self._step_s = times.step_s(0, 1, 0)
        self._num_running = 0
        self._has_started = False

    @property
    def info(self) -> EngineInfo:
        """A description of the simulated engine."""
        return EngineInfo(model="simulated", max_model_len=8192, speculation_locked_reason=_NO_DRAFT)

    @property
    def is_alive(self) -> bool:
        """Whether the engine has started."""
        return self._has_started

    async def start(self) -> None:
        """Become ready at once."""
        self._has_started = True

    def submit(self, request: GenerationRequest, sink: Sink) -> Work:
        """Push a request's tokens at their times; see the interface."""
        self._num_running += 1
        slot = _Slot(self, sink, request.max_tokens - 1)
        slot.timer = asyncio.get_running_loop().call_later(self._prefill_s, slot.first_token)
        return slot

    def stats(self) -> EngineStats:
        """Return the number of running requests."""
        return EngineStats(num_running=self._num_running)

    async def stop(self) -> None:
        """Stop the engine."""
        self._has_started = False


@dataclass(slots=True)
class _Slot:
    """One request of a slot engine."""

    engine: SlotEngine
    sink: Sink
    num_left: int
    timer: asyncio.TimerHandle | None = None

    def first_token(self) -> None:
        """Push the first token, and the others at the time of the last one."""
        left_s = self.num_left * self.engine._step_s
        self.timer = asyncio.get_running_loop().call_later(left_s, self.last_token)
        self.sink.push(Output(SIMULATED_TOKENS[0], 1))

    def last_token(self) -> None:
        """Push the other tokens."""
        self.abort()
        self.sink.push(Output("".join(SIMULATED_TOKENS[1 : self.num_left + 1]), self.num_left, "length"))

    def abort(self) -> None:
        """Free the slot."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.engine._num_running -= 1


class OtherWork:
    """Work of other processes on the engine's processors, which lengthens its steps.

    All work that has come since the last step began lengthens the next one, also if the engine was idle meanwhile: work
    comes with requests, and those end the idling.
    """

    def __init__(self) -> None:
        self._owed_s = 0.0

    def add(self, seconds: float) -> None:
        """Add work that delays the engine by as much."""
        self._owed_s += seconds

    def lengthen(self, step_s: float) -> float:
        """Return the time of a step that would take `step_s` alone."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return step_s + owed_s


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """An engine, its requests and its machine."""

    times: ServiceTimes
    mean_tokens: int
    """Mean tokens of a whole answer, before the cut at `most_tokens`."""
    most_tokens: int
    """All answers have `mean_tokens` if this is the same; else their lengths are geometric up to this."""
    mean_prompt_tokens: int = 1
    """Mean of the prompt tokens that a request computes, those that are not cached."""
    request_cpu_s: float = 0.0
    """Processor time of front end and editors for a request, which delays the engine's steps."""
    front_end_s: float = 0.0
    """Time from an editor's request to the scheduler and from the engine's token back to the editor. All of it passes
    before the scheduler."""
    has_full_batch: bool = False
    """Whether the capacity is that of a full batch, whose generations share steps, or that of independent slots."""

    @property
    def first_text_s(self) -> float:
        """Time to the first text of a request that is alone."""
        return self.front_end_s + self.times.step_s(self.mean_prompt_tokens, 0, 0)

    @property
    def service_s(self) -> float:
        """Time to the end of a request that is alone in the engine."""
        prompt_s, step_s = self.times.step_s(self.mean_prompt_tokens, 0, 0), self.times.step_s(0, 1, 0)
        return prompt_s + (self.mean_tokens - 1) * step_s

    def capacity_per_s(self, num_slots: int) -> float:
        """Return the requests per second that the engine can serve to the end."""
        if not self.has_full_batch:
            return num_slots / self.service_s
        # Of each generation's steps one has its prompt; all are shared with the other generations.
        num = min(_NUM_FULL, num_slots)
        prompts = self.times.step_s(self.mean_prompt_tokens, 0, 0) - self.times.step_base_s
        steps_s = self.mean_tokens * self.times.step_s(0, num, 0)
        return num / (steps_s + num * (prompts - self.times.decode_per_seq_s + self.request_cpu_s))

    def draw_tokens(self, chance: random.Random) -> int:
        """Draw the tokens of an answer."""
        num = 1
        if self.most_tokens == self.mean_tokens:
            return self.mean_tokens
        while num < self.most_tokens and chance.random() * self.mean_tokens >= 1:
            num += 1
        return num

    def draw_prompt_tokens(self, chance: random.Random) -> int:
        """Draw the prompt tokens that a request computes."""
        return chance.randint(1, 2 * self.mean_prompt_tokens - 1)


LARGE_MODEL = EngineProfile(LARGE_MODEL_ON_A_GPU, mean_tokens=21, most_tokens=21)
"""A 13B model on an A100; no other work."""


@cache
def measured_engine() -> EngineProfile:
    """Return the embedded model's engine, by its measured steps; step_times.json says where and when."""
    times = json.loads(files(__package__).joinpath("step_times.json").read_text(encoding="utf-8"))["times"]
    return EngineProfile(
        ServiceTimes(**times),
        mean_tokens=9,
        most_tokens=24,
        mean_prompt_tokens=31,
        request_cpu_s=_REQUEST_CPU_S,
        front_end_s=_FRONT_END_S,
        has_full_batch=True,
    )
