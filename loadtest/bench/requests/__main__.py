"""Measures the CPU time that the front end takes for a request: beside a gRPC server without logic, and its parts.

Over gRPC with h2load: see `h2load`.

In process: the front end without gRPC, and its parts (see `in_process`).

The best of all rounds counts, because other work on the machine can only add CPU time.
"""

from dataclasses import dataclass

import click
from rich.console import Console

from loadtest.bench.requests import h2load
from loadtest.bench.requests.in_process import Passes
from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import figure_table
from loadtest.bench.runner.front_end import editors
from loadtest.bench.runner.server import effective_config, prompt_maker
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace

_IN_PROCESS_S = 10.0
"""Virtual seconds of a pass in process."""
_H2LOAD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    sessions: int = option(2000, "Editors, in process.", click.IntRange(1))
    requests_per_s: float = option(600.0, "Asked by all editors together, in process.", click.FloatRange(1))
    seconds: float = option(20.0, "Of traffic in each pass or turn, at most.", click.FloatRange(5))
    rounds: int = option(3, "Passes, and turns of each server.", click.IntRange(1))
    in_process_only: bool = option(False, "Leave h2load out: half a minute, for one change at a time.")
    h2load_only: bool = option(False, "Measure with h2load alone.")
    seed: int = option(0, "Who types what and when.", int)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Measure the CPU time of a request. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.requests --h2load-only --rounds 5
        python -m loadtest.bench.requests --in-process-only
    """
    scenario = editors(options.sessions, options.requests_per_s, options.seconds, options.seed)
    found: dict[str, float] = {}
    if not options.in_process_only:
        found |= _with_h2load(options, console)
    if not options.h2load_only:
        found |= _in_process(_passes(options, scenario), options.rounds)
    names = ("sessions", "requests_per_s", "seconds", "rounds", "seed")
    return Result(
        found | {name: getattr(options, name) for name in names}, [figure_table("CPU time of a request", found)]
    )


def _with_h2load(options: _Options, console: Console) -> dict[str, float]:
    """Return the figures of h2load; none, and a warning, where it is not installed."""
    try:
        h2load.find_h2load()
    except h2load.H2loadError as error:
        if options.h2load_only:
            raise
        console.print(f"{error}; its figures are left out", style="yellow")
        return {}
    seconds = min(_H2LOAD_S, options.seconds)
    return h2load.measure(options.config, options.overrides, options.rounds, seconds)


def _in_process(passes: Passes, rounds: int) -> dict[str, float]:
    measured = [passes.measure() for _ in range(rounds)]
    best = {part: min(each[part] for each in measured) for part in measured[0]}
    return {
        "front_end_cpu_ms": best["front_end"],
        "streams_cpu_ms": best["front_end"] - best["pipeline"],
        "scheduling_cpu_ms": best["pipeline"] - best["prompt"] - best["engine"],
        "prompt_cpu_ms": best["prompt"],
        "engine_cpu_ms": best["engine"],
    }


def _passes(options: _Options, scenario: Scenario) -> Passes:
    """Return the passes in process, with the configured model's prompts."""
    effective = effective_config(options.config, (*options.overrides, "engine.kind=scripted"))
    short = scenario.scaled(duration_s=min(_IN_PROCESS_S, scenario.duration_s))
    return Passes(make_trace(short), short, prompt_maker(effective).builder)


if __name__ == "__main__":
    main()
