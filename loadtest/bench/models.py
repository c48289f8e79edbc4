"""Measures the embedded models: quality, the loss by INT8, and the draft's acceptance.

It runs the commands `target-model evaluate` and `draft-model evaluate`, and collects their figures.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.bench.runner.benchmark import Options, benchmark, option

_TARGETS = """target_model evaluate --model bf16=target_model/embedded-bf16 --model int8=target_model/embedded
--single-line target_model/benchmarks/HumanEval-SingleLineInfilling.jsonl.gz --max-texts 24
--held-out draft_model/held_out/held_out-00000.parquet"""
"""24 of the 71 held-out files, evenly."""
_PAIR = """draft_model evaluate --target target_model/embedded --draft draft_model/embedded
--corpus draft_model/held_out --speculate 4 --greedy-only
--prompts target_model/benchmarks/HumanEval.jsonl.gz --prompt-tokens 32"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Options):
    cursors: int = option(100, "For acceptance.", click.IntRange(10), quick=10)
    max_tasks: int = option(400, "Of the 1,033 single lines, evenly.", click.IntRange(1), quick=10)
    allow_weak_sandbox: bool = option(False, "Passed on to `target-model evaluate`.")


@benchmark(_Options)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Evaluate a target in INT8 and bfloat16, and its draft. The last line is a JSON object.

    Held-out code and HumanEval's single lines, in the real engine. What the models write is run in a sandbox.

    \b
    Example:
        python -m loadtest.bench.models --cursors 50 --max-tasks 100
    """
    with tempfile.TemporaryDirectory(prefix="bench-models-") as folder:
        targets, pair = Path(folder) / "targets.json", Path(folder) / "pair"
        sandbox = ["--allow-weak-sandbox"] if options.allow_weak_sandbox else []
        for command in (
            [*_TARGETS.split(), "--max-tasks", str(options.max_tasks), "--out", str(targets), *sandbox],
            [*_PAIR.split(), "--cursors", str(options.cursors), "--out", str(pair)],
        ):
            done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                msg = f"`{' '.join(command[:2])}` failed with status {done.returncode}, see above"
                raise click.ClickException(msg)
            console.out(done.stdout)
        return figures(*(json.loads(each.read_text(encoding="utf-8")) for each in (targets, pair / "report.json")))


def figures(targets: Sequence[Mapping[str, Any]], pair: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of merit from the two reports; bfloat16 is the first target, INT8 the second.

    Losses are nats a token, shares 0 to 1, times milliseconds, steps' of two turns. `acceptance_*` is accepted over
    drafted tokens; `greedy_identical_share` is of completions of `identity_tokens` tokens.
    """
    _bf16, int8 = targets
    run, offline = pair["engine"]["runs"][0], pair["offline"]["at_temperature"]["0.0"]
    exact, passed = int8["lines"]["exact"], int8["lines"]["passed"]
    return {
        "held_out_bits_per_byte": int8["bits_per_byte"],
        "single_line_exact_match": exact["hits"] / exact["total"],
        "single_line_exact_match_interval": exact["interval"],
        "single_line_pass_at_1": passed["hits"] / passed["total"],
        "acceptance_k4_greedy": run["acceptance"]["0.0"],
        "acceptance_offline": offline["acceptance_by_length"]["4"],
        "acceptance_offline_interval": offline["acceptance_intervals"]["4"],
        "predicted_share": offline["agreement"],
        "mean_accepted_length_k4": run["mean_accepted_length"]["0.0"],
        "int8_loss_increase": int8["loss_more"]["value"],
        "int8_loss_increase_interval": int8["loss_more"]["interval"],
        "greedy_identical_share": pair["identity"]["share"],
        "identity_tokens": 32,
        "speedup_k4_batch_1": run["speedup"],
        "target_step_ms": [step["target_ms"] for step in pair["engine"]["steps"]],
        "draft_step_ms": [step["draft_ms"] for step in pair["engine"]["steps"]],
    }


if __name__ == "__main__":
    main()
