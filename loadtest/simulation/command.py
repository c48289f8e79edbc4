"""`loadtest simulate`: compares scheduling policies in virtual time."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, get_args

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from completion_server.requests.scheduling.queue import ORDERS
from completion_server.requests.scheduling.shedding import Shedding
from loadtest.simulation.workload import (
    PERCENTILES,
    EngineName,
    Policy,
    PolicyFigures,
    SimulatedRequest,
    Workload,
    figures_of,
)
from loadtest.simulation.world import simulate as simulate_one
from loadtest.terminal import wide_console

ALL = "all"
PLAIN = Policy("first_come", "never", supersede=False)
"""A server that neither supersedes nor sheds by time."""

Run = tuple[Workload, Policy, PolicyFigures]


def _loads(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[float, ...]:
    try:
        loads = tuple(float(each) for each in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of numbers like 0.5,1,2") from error
    if not all(0 < load < float("inf") for load in loads):
        raise click.BadParameter(f"every load must be above 0, got {text}")
    return loads


def _in_seconds(_context: click.Context, _parameter: click.Parameter, ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


_ms_option = partial(click.option, type=click.FloatRange(1), callback=_in_seconds)
"""Gives a command an option in milliseconds, which it gets in seconds."""


@click.command(context_settings={"show_default": True})
@click.option(
    "--load",
    "loads",
    default="0.5,1,2,4",
    callback=_loads,
    metavar="LOADS",
    help="Requests offered, relative to those that the slots can serve to the end; separate several with commas.",
)
@click.option("--order", type=click.Choice([*ORDERS, ALL]), default=ALL, help="scheduling.order.")
@click.option("--shed", type=click.Choice([*(each.value for each in Shedding), ALL]), default=ALL, help="shed.when.")
@click.option("--supersede/--no-supersede", default=True, help="scheduling.supersede.")
@click.option("--slots", "num_slots", type=click.IntRange(1), default=8, help="Requests in service at a time.")
@click.option(
    "--sessions",
    "num_sessions",
    type=click.IntRange(1),
    help="Open sessions; their users are away as the load requires.  [default: users who never rest]",
)
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    default="slots",
    help="slots: requests don't delay each other; steps: a prompt delays its whole batch.",
)
@_ms_option("--budget-ms", "budget_s", default=250.0, help="How late a first text may come.")
@_ms_option("--hurried-ms", "hurried_s", help="Deadline of every second user's calls.  [default: none]")
@click.option(
    "--hang-up/--no-hang-up",
    "hangs_up",
    default=False,
    help="Whether editors cancel at the next key or only with their next request.",
)
@click.option("--seconds", type=click.FloatRange(1), default=30.0, help="Virtual time of each run.")
@click.option("--seed", type=int, default=1, help="The same seed gives the same figures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tables.")
def simulate(
    loads: tuple[float, ...],
    order: str,
    shed: str,
    *,
    supersede: bool,
    as_json: bool,
    **conditions: Any,  # noqa: ANN401 - fields of Workload
) -> None:
    """Compare scheduling policies under load.

    Simulated users type and pause. The server's own scheduler serves them in virtual time, on an engine that takes
    45 ms to a first text and 205 ms in all (a 13B model on an A100). The typing model's values are assumptions.

    A completion is seen if its first text comes within the budget and stands for a while before the next key. "seen/s"
    measures a policy; at each load the best ones are marked. "pauses" is the share answered in time of the requests
    after which the user stopped typing. "wasted" is the share of slot time spent on completions that were not seen.

    "plain" is a server that neither supersedes nor sheds by time; it sheds when its queue is full. While all requests
    have one budget, earliest deadline is the same as first come; see --hurried-ms.

    \b
    Examples:
      loadtest simulate
      loadtest simulate --load 4 --shed late --hurried-ms 120
      loadtest simulate --sessions 10000 --slots 128 --load 2.4 --seconds 5
    """
    workloads = [Workload(load=load, **conditions) for load in loads]
    policies = _policies(order, shed, supersede=supersede)
    runs = _run(workloads, policies)
    if as_json:
        shared = {name: value for name, value in asdict(workloads[0]).items() if name != "load"}
        click.echo(json.dumps({"scenario": shared, "runs": [_run_as_dict(*run) for run in runs]}))
        return
    console = wide_console()
    for number in range(len(workloads)):
        _print(console, runs[number * len(policies) : (number + 1) * len(policies)])


def _policies(order: str, shed: str, *, supersede: bool) -> list[Policy]:
    """Return the chosen policies; with all of them chosen, the plain one too."""
    orders = list(ORDERS) if order == ALL else [order]
    sheds = [each.value for each in Shedding] if shed == ALL else [shed]
    policies = [Policy(each, when, supersede) for each in orders for when in sheds]
    return [PLAIN, *policies] if order == shed == ALL and supersede else policies


def _run(workloads: Sequence[Workload], policies: Sequence[Policy]) -> list[Run]:
    grid = [(workload, requests, policy) for workload, requests in _asked(workloads) for policy in policies]
    console = Console(stderr=True)
    steps = track(grid, "Simulating", console=console, disable=not console.is_terminal)
    return [(at, policy, figures_of(simulate_one(at, policy, requests), at)) for at, requests, policy in steps]


def _asked(workloads: Sequence[Workload]) -> list[tuple[Workload, list[SimulatedRequest]]]:
    try:
        return [(workload, workload.requests()) for workload in workloads]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--sessions") from error


def _run_as_dict(workload: Workload, policy: Policy, figures: PolicyFigures) -> dict[str, Any]:
    found = {name: _rounded(value) for name, value in asdict(figures).items()}
    return {"asked_load": workload.load, "policy": asdict(policy), **found}


def _rounded(value: float | tuple[float, ...] | None) -> dict[str, float] | float | None:
    if isinstance(value, tuple):
        return {f"p{percent}": round(each, 3) for percent, each in zip(PERCENTILES, value, strict=True)}
    return value if value is None else round(value, 4)


def _print(console: Console, runs: Sequence[Run]) -> None:
    """Print the figures of all policies on one workload."""
    figures = runs[0][2]
    title = (
        f"load {figures.load:.2f}: {figures.offered_per_s:.1f} requests/s, after {figures.pauses_per_s:.1f} of which "
        f"users pause; {figures.seeable_per_s:.1f} could be seen"
    )
    console.print(title, style="bold")
    most = max(each.seen_per_s for _, _, each in runs)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("order")
    table.add_column("shed")
    percentiles = "/".join(f"p{percent}" for percent in PERCENTILES) + " ms"
    ttfts = (f"TTFT of pauses\n{percentiles}", f"TTFT of all\n{percentiles}")
    for name in ("seen/s", "pauses", *ttfts, "shed", "superseded", "wasted"):
        table.add_column(name, justify="right")
    for _, policy, each in runs:
        table.add_row(
            "plain" if policy == PLAIN else policy.order,
            policy.shed,
            "* " * (len(runs) > 1 and each.seen_per_s == most) + f"{each.seen_per_s:.1f}",
            _percent(each.pauses_answered_share),
            _times(each.pause_ttft_ms),
            _times(each.ttft_ms),
            *map(_percent, (each.shed_share, each.superseded_share, each.wasted_share)),
        )
    console.print(table)
    console.print()


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _times(percentiles: tuple[float, ...] | None) -> str:
    return "-" if percentiles is None else "/".join(f"{each:.0f}" for each in percentiles)
