"""Measures the duration of the engine's steps and writes the constants of the simulation.

The engine of a server's configuration runs without a server and without drafts (K = 0): generations decode, prompts of
known size join them, and each step's duration is the engine core's own. The constants go into a file that
`loadtest simulate --engine measured` uses.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from completion_server.composition.engine_factory import engine_arguments, make_engine_factory
from completion_server.config import Config, load_config
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import EngineDeadError
from loadtest.bench.common.command import config_options
from loadtest.bench.common.figures import report_console
from loadtest.bench.steps.document import document_of
from loadtest.bench.steps.fit import FitError, StepFit, fit
from loadtest.bench.steps.measure import Samples, StepWork, measure
from loadtest.processes.child import end_on_sigterm

_SIZES = (1, 2, 4, 8, 16, 24)
_PROMPTS = ((1, 8), (1, 32), (1, 64), (1, 128), (1, 320), (2, 32), (4, 32), (8, 32))
"""Prompts that join a step, and the tokens of each."""
_QUICK_SIZES, _QUICK_PROMPTS = (1, 4), ((1, 32), (2, 64))
_NO_DRAFTS = "engine.num_speculative_tokens=0"


@click.command()
@config_options
@click.option("--rounds", type=click.IntRange(1), default=8, show_default=True, help="How often each kind is measured.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which tokens.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the constants of the simulation here."
)
@click.option("--quick", is_flag=True, help="One round of few kinds of steps, to see that all of it works.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON object alone.")
def main(
    config: Path, overrides: tuple[str, ...], rounds: int, seed: int, out: Path | None, *, quick: bool, as_json: bool
) -> None:
    """Measure the duration of steps. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.steps --out loadtest/simulation/step_times.json
    """
    end_on_sigterm()
    sizes, prompts = (_QUICK_SIZES, _QUICK_PROMPTS) if quick else (_SIZES, _PROMPTS)
    try:
        effective = load_config(config, (*overrides, _NO_DRAFTS), os.environ)
        samples = asyncio.run(_measure(effective, sizes, prompts, 1 if quick else rounds, seed))
        typical = samples.typical()
        fitted = fit(typical)
    except (ConfigError, EngineDeadError, FitError, TimeoutError, ValueError) as error:
        raise click.ClickException(str(error) or "the engine gave no output") from error
    if not as_json:
        _print(samples, typical, fitted, report_console())
    is_eager = engine_arguments(effective).get("enforce_eager")
    document = document_of(effective.engine, typical, fitted, enforce_eager=is_eager)
    if out is not None:
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(document))


async def _measure(
    config: Config, sizes: Sequence[int], prompts: Sequence[tuple[int, int]], rounds: int, seed: int
) -> Samples:
    engine = make_engine_factory(config)()
    try:
        with Console(stderr=True).status("loading the engine"):
            await engine.start()
        await measure(engine, sizes[:1], prompts[:1], 1, seed)  # the first steps are slower
        with Console(stderr=True).status("measuring"):
            return await measure(engine, sizes, prompts, rounds, seed + 1)
    finally:
        await engine.stop()


def _print(samples: Samples, typical: dict[StepWork, float], fitted: StepFit, console: Console) -> None:
    table = Table(title="Duration of steps, lower quartiles", title_justify="left")
    for heading in ("decoding", "prompts", "prompt tokens", "samples", "ms", "fitted ms"):
        table.add_column(heading, justify="right")
    for work, seconds in typical.items():
        table.add_row(
            str(work.num_decoding),
            str(work.num_prompts),
            str(work.prompt_tokens),
            str(len(samples.seconds[work])),
            f"{seconds * 1000:.2f}",
            f"{fitted.seconds(work) * 1000:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
