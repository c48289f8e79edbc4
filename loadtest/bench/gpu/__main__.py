"""Measures a GPU in four parts and fills the table of the server's goals. A call that is cut off can be repeated.

functional: the same greedy text with drafts, aborts, a restart, and SIGTERM that leaves nothing on the GPU.
speculation: a 13B-sized INT8 target with a 1B-sized draft, five ways, against an engine without a draft.
ttft: time to first token by prompt tokens, for two sizes of a step.
sessions: how many editors are served at the objective.

Not run by us yet: no GPU was at hand. `--tiny` runs all of it in small shapes on a CPU, to try the program.
"""

import asyncio
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.gpu import functional, sessions, speculation, ttft
from loadtest.bench.gpu.engines import Trial
from loadtest.bench.gpu.machine import FILE, Results, ask_driver, find_plugins
from loadtest.bench.runner.benchmark import FOLDER, Result, ServerOptions, benchmark, expected_errors, option
from loadtest.bench.runner.figures import text_table

PARTS: Mapping[str, ModuleType] = {
    "functional": functional,
    "speculation": speculation,
    "ttft": ttft,
    "sessions": sessions,
}
"""Each has its `figures`, and a plan that describes and measures the part."""

_NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    part: tuple[str, ...] = option((), "One part; may be repeated.  [all]", click.Choice(list(PARTS)))
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
    plans = _tiny_plans() if options.tiny else _plans()
    described = {
        part: {"plan": asdict(plans[part]), **plans[part].described(Path("MODELS"), is_tiny=options.tiny)}
        for part in options.part or PARTS
    }
    if options.dry_run:
        return Result(described, is_measured=False)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    machine = {"device": ask_driver("name") or "cpu", "driver": ask_driver("driver_version"), "tiny": options.tiny}
    results = Results(options.out, machine | {"started_at": started_at})
    given = {**machine, "config": options.config.read_text(encoding="utf-8"), "overrides": options.overrides}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        plugins = Path(folder, "plugins")
        plugins.mkdir()
        find_plugins(plugins)
        for part, started in described.items():
            ways = results.ways(part, started | given, PARTS[part].figures)
            console.print(f"part: {part}" + (f" (from {options.out / FILE}: {', '.join(ways)})" if ways else ""))
            trial = Trial(Path(folder, part), options.config, options.overrides, options.tiny, console)
            with expected_errors(part=part):
                asyncio.run(plans[part].measure(trial, ways))
    return Result(results.found, _tables(results.found))


def _plans() -> dict[str, Any]:
    """Return the plan of each part."""
    return {
        "functional": functional.FunctionalPlan(),
        "speculation": speculation.SpeculationPlan(),
        "ttft": ttft.TtftPlan(),
        "sessions": sessions.SessionsPlan(),
    }


def _tiny_plans() -> dict[str, Any]:
    return {
        "functional": functional.FunctionalPlan(num_texts=4, max_tokens=16, together=2),
        "speculation": speculation.SpeculationPlan(k=2, batches=(1, 2), tokens=16, rounds=3),
        "ttft": ttft.TtftPlan(prompt_tokens=(64, 128), step_tokens=(256, 512), crowd=2, rounds=2),
        "sessions": sessions.SessionsPlan("steady", 1, 2, duration_s=4.0, max_num_seqs=8),
    }


def _tables(found: Mapping[str, Any]) -> list[Table]:
    tables = [part.table(found[name]) for name, part in (("speculation", speculation), ("ttft", ttft)) if name in found]
    headings = ("figure", "no draft", "as served", "bar")
    title = "a 13B-sized INT8 target on this GPU"
    return [*tables, text_table(title, headings, goal_rows(found), num_words=4)]


def goal_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (figure, without a draft, as served, goal) for the parts that were run."""
    served = found.get("sessions") or {}
    figures = served.get("figures") or {}
    alone = {name: _of_a_request(entries) for name, entries in (found.get("speculation") or {}).items()}
    plain = alone.pop(speculation.BASELINE, None)
    best = max((value for value in alone.values() if value is not None), default=None)
    return [
        ("TTFT p50 at the objective, ms", "", _number(figures.get("pause_ttft_ms_p50")), "< 100"),
        ("TTFT p95 at the objective, ms", "", _number(figures.get("pause_ttft_ms_p95")), "< 200"),
        ("tokens/s of a request, alone", _number(plain), _number(best), "> 100"),
        ("concurrent sessions at the objective", "", _number(served.get("sessions")), "10,000"),
        ("HumanEval pass@1", "", "not measured: no weights", "> 45%"),
        ("cost of a completion seen, $", "", _number(figures.get("usd_per_completion"), 6), "< 0.0005"),
    ]


def _of_a_request(entries: Mapping[str, Any]) -> float | None:
    return entries["1"]["tokens_per_s_of_a_request"] if "1" in entries else None


def _number(value: float | None, digits: int = 0) -> str:
    return _NOT_RUN if value is None or math.isnan(value) else f"{value:,.{digits}f}"


if __name__ == "__main__":
    main()
