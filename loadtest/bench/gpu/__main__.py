"""Measures a GPU in four parts, each under ten minutes, and fills the table of the server's goals.

functional: the same greedy text with drafts, aborts, a restart, and SIGTERM that leaves nothing on the GPU.
speculation: a 13B-sized INT8 target with a 1B-sized draft, four ways, against an engine without a draft.
ttft: time to first token by prompt tokens, for two sizes of a step.
sessions: how many editors are served at the objective.

Not run by us yet: no GPU was at hand. `--tiny` runs all of it in small shapes on a CPU, to try the program.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.bench.common.command import config_options, expected_errors
from loadtest.bench.common.figures import report_console
from loadtest.bench.gpu import functional, mission, sessions, speculation, ttft
from loadtest.bench.gpu.driver import ask
from loadtest.bench.gpu.ways import Size
from loadtest.processes.child import end_on_sigterm

PARTS = ("functional", "speculation", "ttft", "sessions")
_FIGURES = "gpu.json"


@click.command()
@config_options
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="One part; may be repeated.  [all]")
@click.option("--tiny", is_flag=True, help="Small shapes on a CPU, to try the program itself.")
@click.option("--dry-run", is_flag=True, help="Print what would be started, as JSON, and start nothing.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("work/gpu"),
    show_default=True,
    help="A folder for gpu.json; parts that it has already are kept.",
)
def main(
    config: Path, overrides: tuple[str, ...], parts: tuple[str, ...], out: Path, *, tiny: bool, dry_run: bool
) -> None:
    """Measure this machine's GPU. The last line is a JSON object.

    \b
    Example, in the environment for CUDA, on an H200:
        make bench-gpu
        .venv-cuda/bin/python -m loadtest.bench.gpu --part ttft
    """
    end_on_sigterm()
    wanted, plans = parts or PARTS, plans_for(Size(is_tiny=tiny))
    if dry_run:
        click.echo(json.dumps({part: described(part, plans, Size(is_tiny=tiny)) for part in wanted}, indent=1))
        return
    console = Console(stderr=True)
    found = _earlier(out)
    found |= {"device": ask("name") or "cpu", "driver": ask("driver_version"), "tiny": tiny}
    found["started_at"] = datetime.now(UTC).isoformat(timespec="seconds")
    for part in wanted:
        console.print(f"part: {part}")
        with expected_errors(part=part):
            found[part] = asyncio.run(_measure(part, plans, config, overrides, Size(is_tiny=tiny), console))
        out.mkdir(parents=True, exist_ok=True)
        (out / _FIGURES).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    _print(found)
    click.echo(json.dumps(found))


def plans_for(size: Size) -> dict[str, Any]:
    """Return the plan of each part."""
    plans: dict[str, Any] = {
        "functional": functional.FunctionalPlan(),
        "speculation": speculation.SpeculationPlan(),
        "ttft": ttft.TtftPlan(),
        "sessions": sessions.SessionsPlan(),
    }
    if size.is_tiny:
        plans["functional"] = functional.FunctionalPlan(num_texts=4, max_tokens=16, together=2)
        plans["speculation"] = speculation.SpeculationPlan(k=2, batches=(1, 2), tokens=16, rounds=3)
        plans["ttft"] = ttft.TtftPlan(prompt_tokens=(64, 128), step_tokens=(256, 512), crowd=2, rounds=2)
        plans["sessions"] = sessions.SessionsPlan("steady", 1, 2, duration_s=4.0, max_num_seqs=8)
    return plans


def described(part: str, plans: dict[str, Any], size: Size) -> dict[str, Any]:
    """Return the plan of a part with what it starts."""
    plan, folder = plans[part], Path("MODELS")
    found: dict[str, Any] = {"plan": asdict(plan)}
    if part == "functional":
        found["servers"] = functional.VARIANTS
    elif part == "sessions":
        found["server"] = plan.overrides(folder, size)
        found["search"] = plan.search("ADDRESS")[3:]
    else:
        found["engines"] = [asdict(way) for way in plan.ways(folder, size)]
    return found


async def _measure(
    part: str, plans: dict[str, Any], config: Path, overrides: Sequence[str], size: Size, console: Console
) -> dict[str, Any]:
    plan = plans[part]
    if part == "functional":
        return await functional.measure(plan, config, overrides, console)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        models = Path(folder)
        if part == "speculation":
            return speculation.figures(await speculation.measure(plan, models, size, console))
        if part == "ttft":
            return ttft.figures(await ttft.measure(plan, models, size, console))
        return await sessions.measure(plan, models, config, overrides, size, console)


def _earlier(out: Path) -> dict[str, Any]:
    path = out / _FIGURES
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _print(found: dict[str, Any]) -> None:
    console = report_console()
    if "speculation" in found:
        console.print(speculation.table(found["speculation"]))
    if "ttft" in found:
        console.print(ttft.table(found["ttft"]))
    console.print(mission.table(found))


if __name__ == "__main__":
    main()
