"""An engine that takes each request the time that it would take alone, however many it serves."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator

from completion_server.engine.interface import Engine, EngineInfo, EngineStats, GenerationRequest, Output
from completion_server.engine.scripted.model import ServiceTimes

_NO_DRAFT = "the simulated slots have no draft"


class SlotEngine(Engine):
    """Slots that don't know of each other: a first token, then the rest at once when the last one would have come.

    In a real engine a prompt delays the others' tokens, as in `ScriptedEngine`; here what a policy does to requests is
    not mixed with what requests do to each other. An aborted request stops at once, not at the end of a step.
    """

    def __init__(self, times: ServiceTimes, prefill_sigma: float = 0.0, seed: int = 0) -> None:
        """Take the time of a prompt and of a decode step from `times`.

        With `prefill_sigma` prefills are log-normal around that time.
        """
        self._prefill_s = times.step_s(1, 0, 0)
        self._step_s = times.step_s(0, 1, 0)
        self._prefill_sigma = prefill_sigma
        self._chance = random.Random(f"{seed} engine")
        self._num_running = 0
        self._has_started = False

    @property
    def info(self) -> EngineInfo:
        """What it would be."""
        return EngineInfo(model="simulated", max_model_len=8192, speculation_locked_reason=_NO_DRAFT)

    @property
    def is_alive(self) -> bool:
        """Whether it has started."""
        return self._has_started

    async def start(self) -> None:
        """Be ready at once."""
        self._has_started = True

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        """Take the time; see the interface."""
        self._num_running += 1
        try:
            await asyncio.sleep(self._prefill_s * math.exp(self._chance.gauss(0.0, self._prefill_sigma)))
            yield Output("x", 1)
            num_left = request.max_tokens - 1
            await asyncio.sleep(num_left * self._step_s)
            yield Output("x" * num_left, num_left, "length")
        finally:
            self._num_running -= 1

    def stats(self) -> EngineStats:
        """Return how many run."""
        return EngineStats(num_running=self._num_running)

    async def stop(self) -> None:
        """Hold nothing."""
        self._has_started = False
