"""Measures the duration of the engine's steps and writes the constants of the simulation.

The engine of a server's configuration runs without a server and without drafts (K = 0): generations decode, prompts of
known size join them, and each step's duration is the engine core's own. The constants go into a file that
`loadtest simulate --engine measured` uses.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from completion_server.composition.engine_factory import engine_arguments, make_engine_factory
from completion_server.config import Config, load_config
from completion_server.engine.interface import EngineDeadError
from loadtest.bench.runner.benchmark import FILE, Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import text_table
from loadtest.bench.steps.fit import FitError, StepFit, document_of, fit
from loadtest.bench.steps.measure import Samples, StepWork, measure

_SIZES: Sequence[int] = (1, 2, 4, 8, 16, 24)
_PROMPTS: Sequence[tuple[int, int]] = ((1, 8), (1, 32), (1, 64), (1, 128), (1, 320), (2, 32), (4, 32), (8, 32))
"""Prompts that join a step, and the tokens of each."""
_QUICK_SIZES, _QUICK_PROMPTS = (1, 4), ((1, 32), (2, 64))
_NO_DRAFTS = "engine.num_speculative_tokens=0"


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
    typical = samples.typical()
    fitted = fit(typical)
    is_eager = engine_arguments(effective).get("enforce_eager")
    document = document_of(asdict(effective.engine), typical, fitted, enforce_eager=is_eager)
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return Result(document, [_table(samples, typical, fitted)])


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


def _table(samples: Samples, typical: Mapping[StepWork, float], fitted: StepFit) -> Table:
    rows = tuple(
        (
            str(work.num_decoding),
            str(work.num_prompts),
            str(work.prompt_tokens),
            str(len(samples.seconds[work])),
            f"{seconds * 1000:.2f}",
            f"{fitted.seconds(work) * 1000:.2f}",
        )
        for work, seconds in typical.items()
    )
    headings = ("decoding", "prompts", "prompt tokens", "samples", "ms", "fitted ms")
    return text_table("Duration of steps, lower quartiles", headings, rows, num_words=0)


if __name__ == "__main__":
    main()
