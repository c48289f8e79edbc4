"""Measures seen completions under open-loop typing: this server, the same without its policies, and `vllm serve`.

Three targets run the same model with the same engine arguments and take turns on the same traces, in one run:

- the scheduler: the configured server. Editors keep a `Session` stream and cancel a request at the key that makes it
  stale. With `--no-cancel-at-key` they only send the next request, a debounce later.
- plain: the same server with superseding, typing through, shedding, the adaptive number of slots and the limit for each
  user off, first come first served. Editors only send their next request.
- `vllm serve`, over HTTP with the server's token ids and end tokens. Editors close the connection at the user's next
  key. It has no text rules: an answer runs to its last token, or to the next key.

The rules of the comparison:

- Requests are sent at predetermined times, regardless of the earlier ones; latencies count from those times.
- The user's next key, which the trace knows, decides the value of an answer: a completion is seen when its first
  visible text comes in time and stands for a while before that key.
- Loads are multiples of the engine's capacity, which is measured first on the plain server: whole completions per
  second, closed loop, on growing prefixes, so that the prefix cache works as while typing.
- Each round and load has its own trace, the same for all targets, which take turns in changing order; the servers of
  the others are suspended meanwhile. A target sees
  each document once before a trace begins, so that a trace shows typing and not the opening of all documents at once.
- Wasted tokens are vLLM's count of generated tokens less those of seen answers. The count leaves out the tokens that a
  step in flight computes for a request just aborted, for all targets. When a newer request reattaches to a generation,
  the tokens count for the newer one only.

Client, servers and engines share the machine; the report includes the generator's lag.
"""

import asyncio
import gc
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
from rich.console import Console
from rich.progress import Progress

from loadtest.bench.common.command import config_options, expected_errors, json_option, typing_seed_option
from loadtest.bench.common.figures import report_console, rounded
from loadtest.bench.scheduler.capacity import EngineCapacity, measure_capacity
from loadtest.bench.scheduler.cells import Cell, Renderer, make_cells
from loadtest.bench.scheduler.report import (
    PLAIN,
    SCHEDULER,
    VLLM_SERVE,
    Criteria,
    Results,
    as_json,
    figures,
    first_errors,
    headline,
    print_tables,
)
from loadtest.bench.scheduler.targets import TargetTurns, start_targets
from loadtest.driving.driver import drive
from loadtest.processes.child import end_on_sigterm
from loadtest.report.drawing.curve import curve_svg
from loadtest.targets import ClientSettings, Target
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace

_CONCURRENCIES = (4, 8, 16)
_CAPACITY_S = 8.0
_WARM_UP_SESSIONS, _WARM_UP_S = 8, 3.0
_QUICK_S, _QUICK_CAPACITY_S = 4.0, 2.0
_TARGETS = {name.replace(" ", "-"): name for name in (SCHEDULER, PLAIN, VLLM_SERVE)}
"""The targets by their names on the command line."""


class _Options(TypedDict):
    seconds: float
    rounds: int
    loads: tuple[float, ...]
    capacity: float | None
    max_tokens: int
    prefix_chars: int
    suffix_chars: int
    within_ms: float
    before_next_key_ms: float
    seed: int
    cancel_at_key: bool
    has_lead_in: bool
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contest:
    """All measurements."""

    scenario: Scenario
    capacity: EngineCapacity | None
    completions_per_s: float
    """The engine's capacity; loads are multiples of it."""
    cells: list[Cell]
    results: Results


@click.command()
@config_options
@click.option("--seconds", type=click.FloatRange(1), default=15.0, show_default=True, help="Length of a trace.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Traces for each load.")
@click.option(
    "--load",
    "loads",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    default=(0.5, 1.0, 2.0, 4.0),
    show_default=True,
    help="Requests/s asked for, as a multiple of the completions/s that the engine can serve; may be repeated.",
)
@click.option("--capacity", type=click.FloatRange(0, min_open=True), help="Completions/s; not given, it is measured.")
@click.option(
    "--target",
    "targets",
    type=click.Choice(list(_TARGETS)),
    multiple=True,
    default=tuple(_TARGETS),
    show_default=True,
    callback=lambda _context, _parameter, names: tuple(_TARGETS[name] for name in names),
    help=f"Which targets take part; may be repeated. Without {PLAIN} there must be a --capacity.",
)
@click.option("--max-tokens", type=click.IntRange(1), default=24, show_default=True)
@click.option("--prefix-chars", type=click.IntRange(100), default=1500, show_default=True)
@click.option("--suffix-chars", type=click.IntRange(1), default=400, show_default=True)
@click.option(
    "--within-ms", type=click.FloatRange(1), default=250.0, show_default=True, help="The latest that text is in time."
)
@click.option(
    "--before-next-key-ms",
    type=click.FloatRange(0),
    default=200.0,
    show_default=True,
    help="How long text must stand before the next key to be seen.",
)
@typing_seed_option
@click.option(
    "--cancel-at-key/--no-cancel-at-key", default=True, help="Whether the scheduler's editors cancel at the key."
)
@click.option("--lead-in/--no-lead-in", "has_lead_in", default=True, help="Whether documents are known beforehand.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw seen/s against load into this SVG file."
)
@click.option("--quick", is_flag=True, help="One short round, to see that all of it works.")
@json_option
def main(
    config: Path,
    overrides: tuple[str, ...],
    picture: Path | None,
    quick: bool,
    as_json_only: bool,
    **options: Unpack[_Options],
) -> None:
    """Measure seen completions at several loads. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.scheduler --config deploy/local/server.toml --quick
        python -m loadtest.bench.scheduler --load 2 --rounds 4
    """
    end_on_sigterm()
    if PLAIN not in options["targets"] and options["capacity"] is None:
        msg = f"the capacity is measured on target {PLAIN!r}: add it, or give --capacity"
        raise click.BadParameter(msg, param_hint="--target")
    if quick:
        options["seconds"], options["rounds"] = _QUICK_S, 1
    console = Console(stderr=True)
    with expected_errors():
        contest = asyncio.run(
            _measure(config, overrides, options, _QUICK_CAPACITY_S if quick else _CAPACITY_S, console)
        )
    if picture is not None:
        _draw(contest, options, picture)
    _report(contest, options, console, as_json_only=as_json_only)


async def _measure(
    config: Path, overrides: Sequence[str], options: _Options, capacity_s: float, console: Console
) -> Contest:
    scenario = _scenario(options)
    async with AsyncExitStack() as stack:
        # The warm-up's prompts also supply the end tokens of all other traces.
        renderer = Renderer(config, overrides, options["max_tokens"])
        first = scenario.scaled(sessions=_WARM_UP_SESSIONS, duration_s=_WARM_UP_S, seed=f"{options['seed']}/warm-up")
        trace = make_trace(first)
        warm_up = await asyncio.to_thread(renderer.render, [trace])
        targets, turns = await start_targets(
            stack,
            config,
            overrides,
            options["targets"],
            ClientSettings(options["max_tokens"], cancels_at_key=options["cancel_at_key"]),
            warm_up.stop_token_ids,
            console,
        )
        with console.status("warming up"):
            for target in targets:
                await turns.give_to(target)
                await drive(target, warm_up.traces[0])
        measured: EngineCapacity | None = None
        if options["capacity"] is None:
            with console.status("measuring what the engine can serve"):
                plain = next(target for target in targets if target.name == PLAIN)
                await turns.give_to(plain)
                measured = await measure_capacity(plain, _CONCURRENCIES, capacity_s, scenario)
        rate = options["capacity"] or (measured.completions_per_s if measured else 0.0)
        with console.status("making traces"):
            traces = make_cells(options["rounds"], options["loads"], options["seconds"], scenario, rate)
            cells = await asyncio.to_thread(renderer.render_cells, traces)
        results = await _contest(targets, turns, cells, options, console)
    return Contest(scenario, measured, rate, cells, results)


def _scenario(options: _Options) -> Scenario:
    """Return the scenario of all traces, which set their own session counts and durations."""
    documents = {"prefix_chars": options["prefix_chars"], "suffix_chars": options["suffix_chars"]}
    return Scenario.of({"name": "scheduler", "seed": options["seed"], "documents": documents})


async def _contest(
    targets: Sequence[Target], turns: TargetTurns, cells: Sequence[Cell], options: _Options, console: Console
) -> Results:
    results: Results = {load: {target.name: [] for target in targets} for load in options["loads"]}
    gc.collect()
    gc.freeze()  # garbage collections of the prepared traces would delay the generator
    with Progress(console=console) as progress:
        task = progress.add_task("typing", total=len(cells) * len(targets))
        for number, cell in enumerate(cells):
            first = (cell.round + number) % len(targets)
            for target in (*targets[first:], *targets[:first]):
                await turns.give_to(target)
                run = await drive(target, cell.trace, has_lead_in=options["has_lead_in"])
                results[cell.load][target.name].append(run)
                progress.advance(task)
    return results


def _report(contest: Contest, options: _Options, console: Console, *, as_json_only: bool) -> None:
    criteria = Criteria(options["within_ms"] / 1000, options["before_next_key_ms"] / 1000)
    found = figures(contest.results, criteria)
    headlines = headline(found, contest.results)
    for name, error in first_errors(contest.results).items():
        console.print(f"{name}: requests failed, the first with: {error}", markup=False)
    if not as_json_only:
        report = report_console()
        report.print(f"The engine can serve {contest.completions_per_s:.1f} completions/s.")
        print_tables(found, headlines, report)
    click.echo(json.dumps(headlines | _details(contest, options) | {"loads": as_json(found)}))


def _draw(contest: Contest, options: _Options, picture: Path) -> None:
    found = figures(contest.results, Criteria(options["within_ms"] / 1000, options["before_next_key_ms"] / 1000))
    names = {
        SCHEDULER: "this server",
        VLLM_SERVE: "vllm serve, editors hang up at each key",
        PLAIN: "its scheduler off",
    }
    series = {
        label: [(load, by_target[name].seen_per_s) for load, by_target in sorted(found.items())]
        for name, label in names.items()
        if name in options["targets"]
    }
    x_label = (
        f"requests/s, in multiples of the {contest.completions_per_s:.0f} whole completions/s that the engine serves"
    )
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(curve_svg(series, x_label, "completions seen per second", "People who type"), encoding="utf-8")


def _details(contest: Contest, options: _Options) -> dict[str, Any]:
    by_concurrency = contest.capacity.by_concurrency if contest.capacity else {}
    return {
        "capacity_per_s": rounded(contest.completions_per_s),
        "capacity_per_s_by_concurrency": {str(callers): rounded(rate) for callers, rate in by_concurrency.items()},
        "requests_per_s_of_a_session": rounded(contest.scenario.session_requests_per_s),
        "typing": contest.scenario.typing.model.parameters(),
        "options": options,
        "traces": [
            {
                "round": cell.round,
                "load": cell.load,
                "sessions": len(cell.trace.sessions),
                "requests": cell.trace.num_requests,
                "digest": cell.trace.digest(),
            }
            for cell in contest.cells
        ],
    }


if __name__ == "__main__":
    main()
