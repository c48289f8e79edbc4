"""Measures a GPU in four parts, each of which adds its figures to work/gpu/gpu.json.

functional: the same greedy text with drafts, aborts, a restart, and SIGTERM that leaves nothing on the GPU.
speculation: a 13B-sized INT8 target with a 1B-sized draft, five ways, against an engine without a draft.
ttft: time to first token by prompt tokens, for two sizes of a step.
sessions: how many editors are served at the objective.

Not run by us yet: no GPU was at hand. `--quick` runs all of it in small shapes on a CPU, to try the program.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.bench.gpu.engines import Trial, ask_driver
from loadtest.bench.gpu.functional import FunctionalPlan
from loadtest.bench.gpu.plugins import find_plugins
from loadtest.bench.gpu.sessions import SessionsPlan
from loadtest.bench.gpu.speculation import SpeculationPlan
from loadtest.bench.gpu.ttft import TtftPlan
from loadtest.bench.runner.benchmark import FOLDER, ServerOptions, benchmark, option, write_text
from loadtest.bench.runner.figures import for_json

PARTS = {
    "functional": FunctionalPlan(),
    "speculation": SpeculationPlan(),
    "ttft": TtftPlan(),
    "sessions": SessionsPlan(),
}
TINY_PARTS = {
    "functional": FunctionalPlan(num_texts=4, max_tokens=16, together=2),
    "speculation": SpeculationPlan(k=2, batches=(1, 2), tokens=16, rounds=3),
    "ttft": TtftPlan(prompt_tokens=(64, 128), step_tokens=(256, 512), crowd=2, rounds=2),
    "sessions": SessionsPlan("steady", 1, 2, duration_s=4.0, max_num_seqs=8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    part: tuple[str, ...] = option((), "One part; may be repeated.  [all]", click.Choice(list(PARTS)))
    out: Path = option(Path("work/gpu"), "A folder for gpu.json, which keeps the figures of the other parts.", FOLDER)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure this machine's GPU. The last line is a JSON object.

    \b
    Example, in the environment for CUDA, on an H200:
        make bench-gpu
        .venv-cuda/bin/python -m loadtest.bench.gpu --part ttft
    """
    path = options.out / "gpu.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found |= {"device": ask_driver("name") or "cpu", "driver": ask_driver("driver_version"), "tiny": options.quick}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        find_plugins(Path(folder, "plugins"))
        for part in options.part or PARTS:
            console.print(f"part: {part}")
            trial = Trial(Path(folder, part), options.config, options.overrides, options.quick, console)
            plan: Any = (TINY_PARTS if options.quick else PARTS)[part]
            found[part] = for_json(asyncio.run(plan.measure(trial)))
            write_text(path, json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
