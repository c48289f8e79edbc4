"""Measures steps of an engine: generations decode, and prompts of known size join them.

A prompt shares its first blocks with an earlier one, as a key in a known document does, so that the engine computes as
many tokens of it as were asked for, over a context of the usual length.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from completion_server.engine.interface import Engine, EngineStep, GenerationRequest

CONTEXT_TOKENS = 608
"""Cached tokens before those that a step computes: whole blocks of 32, about 1,900 characters of code."""

_DECODE_STEPS = 12
"""Steps without prompts before each prompt."""
_DECODE_TOKENS = 160
_SETTLE_STEPS = 3
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 300, 4000
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, order=True)
class StepWork:
    """The work of an engine step."""

    num_decoding: int
    """Generations that decode."""
    num_prompts: int = 0
    """Prompts that the step computes."""
    prompt_tokens: int = 0
    """Tokens of all these prompts that are not cached."""


@dataclass(slots=True)
class Samples:
    """Durations of steps in seconds, by their work."""

    seconds: dict[StepWork, list[float]] = field(default_factory=dict)

    def add(self, work: StepWork, seconds: float) -> None:
        """Add a step."""
        self.seconds.setdefault(work, []).append(seconds)

    def typical(self) -> dict[StepWork, float]:
        """Return the lower quartile for each kind of work: other work on the machine only makes steps longer."""
        return {work: float(np.percentile(seconds, 25)) for work, seconds in sorted(self.seconds.items())}


async def measure(
    engine: Engine, sizes: Sequence[int], prompts: Sequence[tuple[int, int]], rounds: int, seed: int
) -> Samples:
    """Measure all kinds of steps in each round, so that a drift of the machine affects all of them.

    `sizes` are numbers of generations that decode; `prompts` are numbers of prompts that join them, and the tokens of
    each. Steps with more generations than the engine runs at once are left out. Raises EngineDeadError if the engine
    died; TimeoutError if the engine gave no output for long; ValueError if the prompts do not fit the engine's context.
    """
    meter = _Meter(engine, random.Random(seed))
    most = engine.info.max_num_seqs
    await meter.fill_cache()
    for _ in range(rounds):
        for size in sizes:
            if size > most:
                continue
            async with meter.decoding(size):
                await meter.settle(size)
                for num_prompts, tokens in prompts:
                    await meter.add_decoding(size)
                    if size + num_prompts <= most:
                        await meter.add_prompts(size, num_prompts, tokens)
    return meter.samples


class _Meter:
    """Drives the engine and watches its steps."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self.samples = Samples()
        self._engine = engine
        self._chance = chance
        self._steps: list[EngineStep] = []
        self._has_step = asyncio.Event()
        self._num_asked = 0
        self._contexts = [self._tokens(CONTEXT_TOKENS) for _ in range(engine.info.max_num_seqs)]
        engine.watch_steps(self._see)

    async def fill_cache(self) -> None:
        """Compute the contexts that all prompts begin with."""
        for context in self._contexts:
            async with asyncio.timeout(_LIMIT_S):
                await self._first_token(context)

    @asynccontextmanager
    async def decoding(self, size: int) -> AsyncIterator[None]:
        """Keep as many generations decoding. If one fails, the body is cancelled and the error raised."""
        async with _task_group() as group:
            tasks = [group.create_task(self._decode(number)) for number in range(size)]
            yield
            for task in tasks:
                task.cancel()

    async def settle(self, size: int) -> None:
        """Wait until all of them decode."""
        num_good = 0
        async with asyncio.timeout(_LIMIT_S):
            while num_good < _SETTLE_STEPS:
                step = await self._next_step()
                num_good = num_good + 1 if step.num_seqs == size and not step.has_prompts else 0

    async def add_decoding(self, size: int) -> None:
        """Measure steps without prompts."""
        for _ in range(_DECODE_STEPS):
            step = await self._next_step()
            if step.num_seqs == size and not step.has_prompts and step.seconds is not None:
                self.samples.add(StepWork(size), step.seconds)

    async def add_prompts(self, size: int, num_prompts: int, tokens: int) -> None:
        """Measure one step with the given prompts, if they share one."""
        await asyncio.sleep(self._chance.random() * 0.01)  # requests come at any time of a step
        self._steps.clear()
        prompts = [[*context, *self._tokens(tokens)] for context in self._contexts[-num_prompts:]]
        async with asyncio.timeout(_LIMIT_S), _task_group() as group:
            for prompt in prompts:
                group.create_task(self._first_token(prompt))
        with_prompts = [step for step in self._steps if step.has_prompts]
        if len(with_prompts) == 1 and with_prompts[0].num_seqs == size + num_prompts:
            seconds = with_prompts[0].seconds
            if seconds is not None:
                self.samples.add(StepWork(size, num_prompts, num_prompts * tokens), seconds)

    def _see(self, step: EngineStep) -> None:
        self._steps.append(step)
        self._has_step.set()

    async def _next_step(self) -> EngineStep:
        self._has_step.clear()
        async with asyncio.timeout(_LIMIT_S):
            await self._has_step.wait()
        return self._steps[-1]

    async def _decode(self, number: int) -> None:
        while True:
            async for _output in self._engine.generate(self._request(self._contexts[number], _DECODE_TOKENS)):
                pass

    async def _first_token(self, prompt: list[int]) -> None:
        async with aclosing(self._engine.generate(self._request(prompt, 1))) as outputs:
            async for _output in outputs:
                break

    def _request(self, prompt: list[int], max_tokens: int) -> GenerationRequest:
        self._num_asked += 1
        return GenerationRequest(f"step-{self._num_asked}", prompt, max_tokens)

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(count)]


@asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Return a task group that raises the first error itself, instead of a group of all errors."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
