"""Measures the duration of the engine's steps and writes the constants of the simulation.

The engine of a server's configuration runs in this process's children, without a server: generations decode, prompts of
known size join them, and each step's duration is the engine core's own. The drafts are off. The constants go into a
file that `loadtest simulate --engine measured` uses.
"""

import asyncio
import json
import os
import platform
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from completion_server.engine.interface import Engine, EngineDeadError
from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm.process import prepare
from loadtest.bench.common.figures import report_console
from loadtest.bench.common.server import CommandError, config_options, effective_config
from loadtest.bench.peers.bare_engine import engine_env
from loadtest.bench.steps.fit import StepTimes, fit
from loadtest.bench.steps.measure import CONTEXT_TOKENS, Samples, Shape, measure
from loadtest.processes.child import end_on_sigterm

_SIZES = (1, 2, 4, 8, 16, 24)
_PROMPTS = ((1, 8), (1, 32), (1, 64), (1, 128), (1, 320), (2, 32), (4, 32), (8, 32))
"""Prompts that join a step, and the tokens of each."""
_QUICK_SIZES, _QUICK_PROMPTS = (1, 4), ((1, 32), (2, 64))


@click.command()
@config_options
@click.option(
    "--rounds", type=click.IntRange(1), default=8, show_default=True, help="How often each shape is measured."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which tokens.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the constants of the simulation here."
)
@click.option("--quick", is_flag=True, help="One round of few shapes, to see that all of it works.")
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
        effective = effective_config(config, overrides)
        samples = asyncio.run(_measure(effective, sizes, prompts, 1 if quick else rounds, seed))
    except (CommandError, EngineDeadError, TimeoutError) as error:
        raise click.ClickException(str(error) or "the engine gave no output") from error
    typical = samples.typical()
    times = fit(typical)
    if not as_json:
        _print(samples, typical, times, report_console())
    document = _document(effective, samples, typical, times)
    if out is not None:
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(document))


async def _measure(
    effective: dict[str, Any], sizes: Sequence[int], prompts: Sequence[tuple[int, int]], rounds: int, seed: int
) -> Samples:
    engine = _engine(effective)
    with Console(stderr=True).status("loading the engine"):
        await engine.start()
    try:
        if engine.speculation is not None:
            engine.speculation.switch_off()
        await measure(engine, sizes[:1], prompts[:1], 1, seed)  # the first steps are slower
        with Console(stderr=True).status("measuring"):
            return await measure(engine, sizes, prompts, rounds, seed + 1)
    finally:
        await engine.stop()


def _engine(effective: dict[str, Any]) -> Engine:
    """Return the configured engine. vLLM is imported here, after the variables that it reads are set."""
    settings = EngineSettings(**effective["engine"])
    os.environ.update(engine_env(effective))
    prepare(settings.log_level, settings.cpu_kv_cache_gib)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from completion_server.engine.vllm.engine import VllmEngine

    return VllmEngine(settings)


def _document(
    effective: dict[str, Any], samples: Samples, typical: dict[Shape, float], times: StepTimes
) -> dict[str, Any]:
    engine = effective["engine"]
    counts = samples.first_token_steps
    return {
        "source": "python -m loadtest.bench.steps",
        "machine": f"{os.cpu_count()} x {_processor()}",
        "date": datetime.now(UTC).date().isoformat(),
        "model": Path(engine["model"]).name,
        "context_tokens": CONTEXT_TOKENS,
        "max_num_seqs": engine["max_num_seqs"],
        "base_ms": round(times.base_s * 1000, 4),
        "per_seq_ms": round(times.per_seq_s * 1000, 4),
        "per_prompt_token_ms": round(times.per_prompt_token_s * 1000, 5),
        "prompts_ms": round(times.prompts_s * 1000, 4),
        "median_error": round(times.error, 4),
        "first_token_steps": round(sum(counts) / len(counts), 3) if counts else None,
        "points": [
            [shape.num_decoding, shape.num_prompts, shape.prompt_tokens, round(seconds * 1000, 3)]
            for shape, seconds in typical.items()
        ],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _print(samples: Samples, typical: dict[Shape, float], times: StepTimes, console: Console) -> None:
    table = Table(title="Duration of steps, lower quartiles", title_justify="left")
    for heading in ("decoding", "prompts", "prompt tokens", "samples", "ms", "fitted ms"):
        table.add_column(heading, justify="right")
    for shape, seconds in typical.items():
        table.add_row(
            str(shape.num_decoding),
            str(shape.num_prompts),
            str(shape.prompt_tokens),
            str(len(samples.seconds[shape])),
            f"{seconds * 1000:.2f}",
            f"{times.seconds(shape) * 1000:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
