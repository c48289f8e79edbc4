"""An engine that takes each request the time that it would take alone, however many it serves."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Callable

from completion_server.engine.interface import EngineInfo, EngineStats, GenerationRequest, Output, Step
from completion_server.engine.scripted.model import ServiceTimes
from completion_server.speculation.schedule import Schedule, SpeculationFixedError

_NO_DRAFT = "the simulated slots have no draft"


class SlotEngine:
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
        return EngineInfo(model="simulated", max_model_len=8192, speculation_fixed_because=_NO_DRAFT)

    @property
    def is_alive(self) -> bool:
        """Whether it has started."""
        return self._has_started

    async def start(self) -> None:
        """Be ready at once."""
        self._has_started = True

    async def generate(self, job: GenerationRequest) -> AsyncGenerator[Output]:
        """Take the time; see the interface."""
        self._num_running += 1
        try:
            await asyncio.sleep(self._prefill_s * math.exp(self._chance.gauss(0.0, self._prefill_sigma)))
            yield Output("x", 1)
            num_left = job.max_tokens - 1
            await asyncio.sleep(num_left * self._step_s)
            yield Output("x" * num_left, num_left, "length")
        finally:
            self._num_running -= 1

    def stats(self) -> EngineStats:
        """Return how many run."""
        return EngineStats(num_running=self._num_running)

    @property
    def speculation(self) -> Schedule:
        """Nothing is drafted."""
        return Schedule.fixed(0, 1)

    def set_speculation(self, _schedule: Schedule) -> None:
        """Refuse: there is nothing to set."""
        raise SpeculationFixedError(_NO_DRAFT)

    def watch_steps(self, on_step: Callable[[Step], None]) -> None:
        """Tell nothing: slots take no steps together."""

    def cpu_seconds(self) -> float | None:
        """Return None: it computes nothing."""
        return None

    async def stop(self) -> None:
        """Hold nothing."""
        self._has_started = False
