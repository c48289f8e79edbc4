"""Measures the duration of the engine's steps and writes the constants of the simulation.

The engine of a server's configuration runs without a server and without drafts (K = 0): generations decode, prompts of
known size join them, and each step's duration is the engine core's own. A prompt shares its first blocks with an
earlier one, as a key in a known document does, so that the engine computes as many tokens of it as were asked for, over
a context of the usual length.

The fit is T = base + a * generations + b * prompt tokens + c if there is a prompt, none of the terms below 0. A prompt
that the step ends is one of its generations: it gets a token, too. The constants go into a file that
`loadtest simulate --engine measured` uses.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from completion_server.composition.engine_factory import engine_arguments, make_engine_factory
from completion_server.config import Config, load_config
from completion_server.engine.interface import Engine, EngineDeadError, EngineStep, GenerationRequest
from loadtest.bench.runner.benchmark import FILE, Result, ServerOptions, benchmark, option, processor
from loadtest.bench.runner.figures import text_table

_SIZES: Sequence[int] = (1, 2, 4, 8, 16, 24)
_PROMPTS: Sequence[tuple[int, int]] = ((1, 8), (1, 32), (1, 64), (1, 128), (1, 320), (2, 32), (4, 32), (8, 32))
"""Prompts that join a step, and the tokens of each."""
_QUICK_SIZES, _QUICK_PROMPTS = (1, 4), ((1, 32), (2, 64))
_NO_DRAFTS = "engine.num_speculative_tokens=0"

_CONTEXT_TOKENS = 608
"""Cached tokens before those that a step computes: whole blocks of 32, about 1,900 characters of code."""
_DECODE_STEPS = 12
"""Steps without prompts before each prompt."""
_DECODE_TOKENS = 160
_SETTLE_STEPS = 3
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 300, 4000
_LIMIT_S = 60.0
_NUM_TERMS = 4


class FitError(Exception):
    """The measured steps do not determine all terms."""


class StepWork(NamedTuple):
    """The work of an engine step."""

    num_decoding: int
    """Generations that decode."""
    num_prompts: int = 0
    """Prompts that the step computes."""
    prompt_tokens: int = 0
    """Tokens of all these prompts that are not cached."""

    @property
    def terms(self) -> tuple[float, ...]:
        """The factors of the terms of its duration."""
        return 1.0, self.num_decoding + self.num_prompts, self.prompt_tokens, float(self.num_prompts > 0)


Samples = dict[StepWork, list[float]]
"""Durations of steps in seconds, by their work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    rounds: int = option(8, "How often each kind is measured.", click.IntRange(1))
    seed: int = option(0, "Which tokens.", int)
    out: Path | None = option(None, "Write the constants of the simulation here.", FILE)
    quick: bool = option(False, "One round of few kinds of steps, to see that all of it works.")


@benchmark(_Options, EngineDeadError, FitError, TimeoutError, ValueError)
def main(options: _Options, console: Console) -> Result:
    """Measure the duration of steps. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.steps --out loadtest/simulation/step_times.json
    """
    effective = load_config(options.config, (*options.overrides, _NO_DRAFTS), os.environ)
    samples = asyncio.run(_measure(effective, options, console))
    fitted = fit(typical(samples))
    document = document_of(effective, typical(samples), fitted)
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return Result(document, [_table(samples, fitted)])


async def _measure(config: Config, options: _Options, console: Console) -> Samples:
    sizes, prompts, rounds = _SIZES, _PROMPTS, options.rounds
    if options.quick:
        sizes, prompts, rounds = _QUICK_SIZES, _QUICK_PROMPTS, 1
    engine = make_engine_factory(config)()
    try:
        with console.status("loading the engine"):
            await engine.start()
        await measure(engine, sizes[:1], prompts[:1], 1, options.seed)  # the first steps are slower
        with console.status("measuring"):
            return await measure(engine, sizes, prompts, rounds, options.seed + 1)
    finally:
        await engine.stop()


async def measure(
    engine: Engine, sizes: Sequence[int], prompts: Sequence[tuple[int, int]], rounds: int, seed: int
) -> Samples:
    """Measure all kinds of steps in each round, so that a drift of the machine affects all of them.

    `sizes` are numbers of generations that decode; `prompts` are numbers of prompts that join them, and the tokens of
    each. Steps with more generations than the engine runs at once are left out. Raises EngineDeadError if the engine
    died, TimeoutError if it gave no output for long, ValueError if the prompts do not fit its context.
    """
    meter = _Meter(engine, random.Random(seed))
    most = engine.info.max_num_seqs
    await meter.fill_cache()
    for _ in range(rounds):
        for size in (each for each in sizes if each <= most):
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
        self.samples: Samples = {}
        self._engine = engine
        self._chance = chance
        self._steps: list[EngineStep] = []
        self._has_step = asyncio.Event()
        self._num_asked = 0
        self._contexts = [self._tokens(_CONTEXT_TOKENS) for _ in range(engine.info.max_num_seqs)]
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
            if step.num_seqs == size and not step.has_prompts:
                self._add(StepWork(size), step)

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
            self._add(StepWork(size, num_prompts, num_prompts * tokens), with_prompts[0])

    def _add(self, work: StepWork, step: EngineStep) -> None:
        if step.seconds is not None:
            self.samples.setdefault(work, []).append(step.seconds)

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


def typical(samples: Samples) -> dict[StepWork, float]:
    """Return the lower quartile for each kind of work: other work on the machine only makes steps longer."""
    return {work: float(np.percentile(seconds, 25)) for work, seconds in sorted(samples.items())}


@dataclass(frozen=True, slots=True)
class StepFit:
    """The terms, in seconds."""

    base_s: float
    per_seq_s: float
    per_prompt_token_s: float
    prompts_s: float
    error: float
    """Median deviation of the fit from what was measured, relative to that."""

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        return float(np.dot((self.base_s, self.per_seq_s, self.per_prompt_token_s, self.prompts_s), work.terms))

    @property
    def times(self) -> dict[str, float]:
        """The terms above 0 as the service times of a scripted engine."""
        found = {
            "step_base_s": self.base_s,
            "prefill_base_s": self.prompts_s,
            "prefill_per_seq_s": self.per_seq_s,
            "prefill_per_token_s": self.per_prompt_token_s,
            "decode_per_seq_s": self.per_seq_s,
        }
        return {name: round(seconds, 8) for name, seconds in found.items() if seconds}


def fit(seconds: Mapping[StepWork, float]) -> StepFit:
    """Return the terms whose durations come nearest to the given ones, relative to these.

    Raises FitError if the steps are too few or too similar.
    """
    rows = np.array([work.terms for work in seconds])
    if len(rows) < _NUM_TERMS or np.linalg.matrix_rank(rows) < _NUM_TERMS:
        raise FitError(
            f"{len(rows)} kinds of steps were measured, too few or too similar for a fit of {_NUM_TERMS} terms; "
            "engine.max_num_seqs must be at least 2, and the engine's steps must take time"
        )
    measured = np.array(list(seconds.values()))
    terms, _residual = nnls(rows / measured[:, None], np.ones(len(measured)))
    errors = np.abs(rows @ terms / measured - 1)
    base_s, per_seq_s, per_prompt_token_s, prompts_s = map(float, terms)
    return StepFit(base_s, per_seq_s, per_prompt_token_s, prompts_s, float(np.median(errors)))


def document_of(config: Config, seconds: Mapping[StepWork, float], fitted: StepFit) -> dict[str, Any]:
    """Return the document of the configured engine, which the simulation reads.

    Its `enforce_eager` is vLLM's argument, None for an engine of another kind.
    """
    engine = config.engine
    return {
        "source": "python -m loadtest.bench.steps",
        "machine": processor(),
        "date": datetime.now(UTC).date().isoformat(),
        "model": Path(engine.model).name or engine.kind,
        "enforce_eager": engine_arguments(config).get("enforce_eager"),
        "num_speculative_tokens": engine.num_speculative_tokens,
        "context_tokens": _CONTEXT_TOKENS,
        "max_num_seqs": engine.max_num_seqs,
        "times": fitted.times,
        "median_error": round(fitted.error, 4),
        "points": [[*work, round(each * 1000, 3)] for work, each in seconds.items()],
    }


def _table(samples: Samples, fitted: StepFit) -> Table:
    rows = [
        (*map(str, work), str(len(samples[work])), f"{seconds * 1000:.2f}", f"{fitted.seconds(work) * 1000:.2f}")
        for work, seconds in typical(samples).items()
    ]
    headings = ("decoding", "prompts", "prompt tokens", "samples", "ms", "fitted ms")
    return text_table("Duration of steps, lower quartiles", headings, rows, num_words=0)


if __name__ == "__main__":
    main()
