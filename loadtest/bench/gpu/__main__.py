"""Measures a GPU in four parts and fills the table of the server's goals. A call that is cut off can be repeated.

functional: the same greedy text with drafts, aborts, a restart, and SIGTERM that leaves nothing on the GPU.
speculation: a 13B-sized INT8 target with a 1B-sized draft, five ways, against an engine without a draft.
ttft: time to first token by prompt tokens, for two sizes of a step.
sessions: how many editors are served at the objective.

Not run by us yet: no GPU was at hand. `--tiny` runs all of it in small shapes on a CPU, to try the program.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.gpu import functional, mission, sessions, speculation, ttft
from loadtest.bench.gpu.checkout import find_plugins
from loadtest.bench.gpu.driver import ask
from loadtest.bench.gpu.results import FILE, Results, Ways
from loadtest.bench.gpu.ways import Size
from loadtest.bench.runner.benchmark import FOLDER, Result, ServerOptions, benchmark, expected_errors, option

PARTS = ("functional", "speculation", "ttft", "sessions")
_FIGURES: dict[str, Callable[[Ways], dict[str, Any]]] = {
    "functional": functional.figures,
    "speculation": speculation.figures,
    "ttft": ttft.figures,
    "sessions": sessions.figures,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    part: tuple[str, ...] = option((), "One part; may be repeated.  [all]", click.Choice(PARTS))
    tiny: bool = option(False, "Small shapes on a CPU, to try the program itself.")
    dry_run: bool = option(False, "Print what would be started, as JSON, and start nothing.")
    out: Path = option(
        Path("work/gpu"),
        "A folder for gpu.json; what it has already, measured with the same settings, is not measured again.",
        FOLDER,
    )


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Measure this machine's GPU. The last line is a JSON object.

    \b
    Example, in the environment for CUDA, on an H200:
        make bench-gpu
        .venv-cuda/bin/python -m loadtest.bench.gpu --part ttft
    """
    wanted, size = options.part or PARTS, Size(is_tiny=options.tiny)
    plans = plans_for(size)
    if options.dry_run:
        return Result({part: described(part, plans, size) for part in wanted}, is_measured=False)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    machine = {"device": ask("name") or "cpu", "driver": ask("driver_version"), "tiny": options.tiny}
    results = Results(options.out, machine | {"started_at": started_at})
    given = {**machine, "config": options.config.read_text(encoding="utf-8"), "overrides": options.overrides}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        find_plugins(Path(folder))
        for part in wanted:
            ways = results.ways(part, described(part, plans, size) | given, _FIGURES[part])
            console.print(f"part: {part}" + (f" (from {options.out / FILE}: {', '.join(ways)})" if ways else ""))
            with expected_errors(part=part):
                asyncio.run(_measure(part, plans, options.config, options.overrides, size, console, ways))
    return Result(results.found, _tables(results.found))


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
        found["servers"] = {name: asdict(variant) for name, variant in functional.VARIANTS.items()}
    elif part == "sessions":
        found["server"] = plan.overrides(folder, size)
        found["search"] = plan.search("ADDRESS")[3:]
    else:
        found["engines"] = [asdict(way) for way in plan.ways(folder, size)]
    return found


async def _measure(
    part: str, plans: dict[str, Any], config: Path, overrides: Sequence[str], size: Size, console: Console, ways: Ways
) -> None:
    plan = plans[part]
    if part == "functional":
        await functional.measure(plan, config, overrides, console, ways)
        return
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        models = Path(folder)
        if part == "speculation":
            await speculation.measure(plan, models, size, console, ways)
        elif part == "ttft":
            await ttft.measure(plan, models, size, console, ways)
        else:
            await sessions.measure(plan, models, config, overrides, size, console, ways)


def _tables(found: dict[str, Any]) -> list[Table]:
    tables = [part.table(found[name]) for name, part in (("speculation", speculation), ("ttft", ttft)) if name in found]
    return [*tables, mission.table(found)]


if __name__ == "__main__":
    main()
