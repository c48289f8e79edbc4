"""Measures the CPU time that the front end takes for a request, beside a gRPC server without logic.

Over gRPC: editors type open loop, at a fixed rate below saturation, against a server with the scripted engine; the
generator is a process of its own. The CPU time (user and system) of the server's process, divided by the requests. The
bare server takes turns with it, with the same traffic and as many messages.

In process: the front end without gRPC, and its parts (see `in_process`).

The best of all rounds counts, because other work on the machine can only add CPU time. With `--traces`, a ratio is the
mean over rounds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.common.command import config_options, expected_errors, json_option, typing_seed_option
from loadtest.bench.common.figures import report_console, rounded
from loadtest.bench.common.front_end import editors
from loadtest.bench.common.prompts import PromptMaker
from loadtest.bench.common.served import FrontEnd, TurnCost
from loadtest.bench.common.server import effective_config
from loadtest.bench.requests.in_process import InProcess, Passes
from loadtest.bench.requests.traces import measure as measure_traces
from loadtest.processes.child import end_on_sigterm
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace

_IN_PROCESS_S = 10.0
"""Virtual seconds of a pass in process."""


class _Options(TypedDict):
    sessions: int
    requests_per_s: float
    seconds: float
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """All rounds of a run."""

    served: Sequence[TurnCost]
    bare: Sequence[TurnCost]
    in_process: Sequence[InProcess]

    def figures(self) -> dict[str, float | None]:
        """Return the figures, for a request; without turns over gRPC, those in process alone."""
        parts = ("front_end_ms", "pipeline_ms", "prompt_ms", "engine_ms")
        best = {part: min(getattr(each, part) for each in self.in_process) for part in parts}
        found: dict[str, float | None] = {}
        if self.served:
            server_ms, bare_ms = (min(each.cpu_ms for each in turns) for turns in (self.served, self.bare))
            found = {
                "server_cpu_ms": server_ms,
                "bare_cpu_ms": bare_ms,
                "server_without_engine_cpu_ms": server_ms - best["engine_ms"],
                "ratio_to_bare": server_ms / bare_ms,
                "messages": self.served[-1].messages,
                "shed_share": max(each.shed_share for each in self.served),
                "errors": sum(each.errors for each in (*self.served, *self.bare)),
            }
        in_process = {
            "front_end_cpu_ms": best["front_end_ms"],
            "streams_cpu_ms": best["front_end_ms"] - best["pipeline_ms"],
            "scheduling_cpu_ms": best["pipeline_ms"] - best["prompt_ms"] - best["engine_ms"],
            "prompt_cpu_ms": best["prompt_ms"],
            "engine_cpu_ms": best["engine_ms"],
        }
        return {name: None if value is None else rounded(value) for name, value in (found | in_process).items()}


@click.command()
@config_options
@click.option("--sessions", type=click.IntRange(1), default=2000, show_default=True, help="Editors.")
@click.option(
    "--requests-per-s",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Asked by all editors together. Must be below what the server can serve.",
)
@click.option("--seconds", type=click.FloatRange(5), default=20.0, show_default=True, help="Of traffic in each turn.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns of each server.")
@click.option("--in-process-only", is_flag=True, help="Leave gRPC out: a run of a minute, for one change at a time.")
@click.option("--traces", is_flag=True, help="Measure instead what traces add to the front end, in process.")
@typing_seed_option
@json_option
def main(
    config: Path,
    overrides: tuple[str, ...],
    *,
    in_process_only: bool,
    traces: bool,
    as_json_only: bool,
    **options: Unpack[_Options],
) -> None:
    """Measure the CPU time of a request. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.requests --requests-per-s 750 --rounds 5
        python -m loadtest.bench.requests --in-process-only
        python -m loadtest.bench.requests --traces --sessions 120 --requests-per-s 64 --seconds 5 --rounds 200
    """
    end_on_sigterm()
    console = Console(stderr=True)
    with expected_errors():
        scenario = editors(options["sessions"], options["requests_per_s"], options["seconds"], options["seed"])
        if traces:
            found = measure_traces(_passes(config, overrides, scenario), options["rounds"])
            figures: dict[str, float | None] = {name: rounded(value) for name, value in found.items()}
        else:
            measured = _measure(
                config, overrides, scenario, options["rounds"], console, in_process_only=in_process_only
            )
            figures = measured.figures()
    if not as_json_only:
        _print(figures)
    click.echo(json.dumps(figures | options))


def _measure(
    config: Path,
    overrides: Sequence[str],
    scenario: Scenario,
    rounds: int,
    console: Console,
    *,
    in_process_only: bool,
) -> RoundCosts:
    served: list[TurnCost] = []
    bare: list[TurnCost] = []
    if not in_process_only:
        with FrontEnd.running(config, overrides, scenario, console) as front_end:
            for _ in range(rounds):
                served.append(front_end.turn())
                bare.append(front_end.bare_turn(served[-1].messages))
    for reason in sorted({reason for turn in (*served, *bare) for reason in turn.invalid}):
        console.print(f"latencies are not valid, CPU times only if the rate was nearly kept: {reason}", style="yellow")
    passes = _passes(config, overrides, scenario)
    return RoundCosts(served, bare, [passes.measure() for _ in range(rounds)])


def _passes(config: Path, overrides: Sequence[str], scenario: Scenario) -> Passes:
    """Return the passes in process, with the configured model's prompts."""
    effective = effective_config(config, (*overrides, "engine.kind=scripted"))
    section = {**effective["prompt"], "max_prompt_tokens": effective["prompt_budget_tokens"]}
    short = scenario.scaled(duration_s=min(_IN_PROCESS_S, scenario.duration_s))
    return Passes(make_trace(short), short, PromptMaker(effective["engine"]["model"], section).builder)


def _print(figures: dict[str, float | None]) -> None:
    table = Table(title="CPU time of a request", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in figures.items():
        table.add_row(name, "-" if value is None else f"{value:,.3f}")
    report_console().print(table)


if __name__ == "__main__":
    main()
