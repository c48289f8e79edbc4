"""An engine whose requests each take the time that they would take alone, regardless of the batch."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator

from completion_server.engine.interface import Engine, EngineInfo, EngineStats, GenerationRequest, Output
from completion_server.engine.scripted.model import ServiceTimes

SIMULATED_TOKENS = tuple(f" {number}" for number in range(256))
"""The text of every completion: without repetition, which the server's text rules would end."""

_NO_DRAFT = "the simulated slots have no draft"


class SlotEngine(Engine):
    """Independent slots. A request yields its first token, then all others at the time of the last one.

    In a real engine, and in `ScriptedEngine`, a prompt delays the tokens of its batch. Here requests don't delay each
    other, so that a run shows the policy's effect alone. An aborted request stops at once, not at the end of a step.
    """

    def __init__(self, times: ServiceTimes, prefill_sigma: float = 0.0, seed: int = 0) -> None:
        """Take the times of a prefill and of a decode step from `times`.

        With `prefill_sigma` above 0, prefill times are log-normal with that median.
        """
        self._prefill_s = times.step_s(1, 0, 0)
        self._step_s = times.step_s(0, 1, 0)
        self._prefill_sigma = prefill_sigma
        self._chance = random.Random(f"{seed} engine")
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

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        """Yield a request's tokens at their times; see the interface."""
        self._num_running += 1
        try:
            await asyncio.sleep(self._prefill_s * math.exp(self._chance.gauss(0.0, self._prefill_sigma)))
            yield Output(SIMULATED_TOKENS[0], 1)
            num_left = request.max_tokens - 1
            await asyncio.sleep(num_left * self._step_s)
            yield Output("".join(SIMULATED_TOKENS[1 : num_left + 1]), num_left, "length")
        finally:
            self._num_running -= 1

    def stats(self) -> EngineStats:
        """Return the number of running requests."""
        return EngineStats(num_running=self._num_running)

    async def stop(self) -> None:
        """Stop the engine."""
        self._has_started = False


class OtherWork:
    """Work of other processes on the engine's processors, which lengthens its steps.

    All work that has come since the last step began lengthens the next one, also if the engine was idle meanwhile: work
    comes with requests, and those end the idling.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._owed_s = 0.0

    def add(self, seconds: float) -> None:
        """Add work that delays the engine by as much."""
        self._owed_s += seconds

    def lengthen(self, step_s: float) -> float:
        """Return the time of a step that would take `step_s` alone."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return step_s + owed_s
