"""The engines that a simulation can run: their times and the size of their answers."""

import asyncio
from dataclasses import dataclass

from completion_server.engine.interface import (
    Engine,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    Output,
    Sink,
    Work,
)
from completion_server.engine.scripted.model import LARGE_MODEL_ON_A_GPU

TIMES = LARGE_MODEL_ON_A_GPU
NUM_TOKENS = 21
"""Of every answer."""
FIRST_TEXT_S = TIMES.step_s(1, 0, 0)
"""Time to the first text of a request that is alone."""
SERVICE_S = FIRST_TEXT_S + (NUM_TOKENS - 1) * TIMES.step_s(0, 1, 0)
"""Time to the end of a request that is alone."""

SIMULATED_TOKENS = tuple(f" {number}" for number in range(NUM_TOKENS))
"""The text of every completion: without repetition, which the server's text rules would end."""

_NO_DRAFT = "the simulated slots have no draft"


class SlotEngine(Engine):
    """Independent slots. A request yields its first token, then all others at the time of the last one.

    In a real engine, and in `ScriptedEngine`, a prompt delays the tokens of its batch. Here requests don't delay each
    other, so that a run shows the policy's effect alone. An aborted request stops at once, not at the end of a step.
    """

    def __init__(self) -> None:
        """Make an engine that is not started."""
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
        slot.timer = asyncio.get_running_loop().call_later(FIRST_TEXT_S, slot.first_token)
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
        left_s = self.num_left * TIMES.step_s(0, 1, 0)
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
