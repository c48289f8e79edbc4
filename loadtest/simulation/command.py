"""`simulate`: what each scheduling policy would do to users, in virtual time."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, TypedDict, Unpack

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from completion_server.scheduling.book import Shedding
from completion_server.scheduling.order import ORDERS
from loadtest.simulation.figures import PERCENTILES, Figures, figures_of
from loadtest.simulation.typists import TypedRequest, Typing
from loadtest.simulation.world import Policy, Scenario
from loadtest.simulation.world import simulate as simulate_one

ALL = "all"
PLAIN = Policy("first_come", "never", supersede=False)
"""A server that knows neither users nor time."""

_PIPE_WIDTH = 120
Run = tuple[Scenario, Policy, Figures]


class _Options(TypedDict):
    sessions: int | None
    slots: int
    engine: Literal["slots", "steps"]
    budget_ms: float
    hurried_ms: float | None
    look_ms: float
    burst_keys: float
    hang_up: bool
    seconds: float
    seed: int


def _loads(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[float, ...]:
    try:
        loads = tuple(float(each) for each in text.split(","))
    except ValueError as error:
        msg = f"{text!r} is not a list of numbers like 0.5,1,2"
        raise click.BadParameter(msg) from error
    if not all(0 < load < float("inf") for load in loads):
        msg = f"every load must be above 0, got {text}"
        raise click.BadParameter(msg)
    return loads


@click.command()
@click.option(
    "--load",
    "loads",
    default="0.5,1,2,4",
    show_default=True,
    callback=_loads,
    metavar="LOADS",
    help="Requests offered, relative to what the slots could serve whole; several with commas between.",
)
@click.option("--order", type=click.Choice([*ORDERS, ALL]), default=ALL, show_default=True, help="scheduling.order.")
@click.option(
    "--shed",
    type=click.Choice([*(each.value for each in Shedding), ALL]),
    default=ALL,
    show_default=True,
    help="shed.when.",
)
@click.option("--supersede/--no-supersede", default=True, show_default=True, help="scheduling.supersede.")
@click.option("--slots", type=click.IntRange(1), default=8, show_default=True, help="Requests served at a time.")
@click.option(
    "--sessions",
    type=click.IntRange(1),
    help="Open sessions, whose users rest as much as the load leaves them; as many as never rest, if not given.",
)
@click.option(
    "--engine",
    type=click.Choice(["slots", "steps"]),
    default="slots",
    show_default=True,
    help="Whether each request takes the time that it takes alone, or prompts delay the whole batch.",
)
@click.option("--budget-ms", type=click.FloatRange(1), default=250.0, show_default=True, help="shed.budget_ms.")
@click.option(
    "--hurried-ms",
    type=click.FloatRange(1),
    help="Every second user's calls have a deadline after so much; none has, if not given.",
)
@click.option(
    "--look-ms",
    type=click.FloatRange(0),
    default=200.0,
    show_default=True,
    help="How long a completion must stand before the next key to be seen.",
)
@click.option(
    "--burst-keys",
    type=click.FloatRange(1),
    default=Typing().keys_per_burst,
    show_default=True,
    help="Keys typed between two pauses, on average.",
)
@click.option("--hang-up", is_flag=True, help="Editors cancel at the next key, not only by their next request.")
@click.option("--seconds", type=click.FloatRange(1), default=30.0, show_default=True, help="Of virtual time, each run.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same figures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tables.")
def simulate(
    loads: tuple[float, ...], order: str, shed: str, *, supersede: bool, as_json: bool, **options: Unpack[_Options]
) -> None:
    """Show what each scheduling policy does to users under load.

    Simulated users type and pause; this server's own scheduler serves them in virtual time, on an engine that takes
    45 ms to a first text and 205 ms in all (a 13B model on an A100). The typists' figures are assumptions.

    A completion is seen if its first text comes within the budget and stands for a while before the next key: "seen/s"
    is what a policy is good for, and at each load those with most are marked. "pauses" is the share of requests after
    which the user stopped typing that were answered in time. "wasted" is slot time for what was not seen.

    "plain" is a server that knows neither users nor time: it supersedes nobody and sheds when its queue is full. While
    all requests have one budget the earliest deadline is who came first; see --hurried-ms.

    \b
    Examples:
      loadtest simulate
      loadtest simulate --load 4 --shed late --hurried-ms 120
      loadtest simulate --sessions 10000 --slots 128 --load 2.4 --seconds 5
    """
    scenarios = [_scenario(load, options) for load in loads]
    policies = _policies(order, shed, supersede=supersede)
    runs = _run(scenarios, policies)
    if as_json:
        click.echo(json.dumps({"scenario": _as_dict(scenarios[0]), "runs": [_run_as_dict(*run) for run in runs]}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    for number in range(len(scenarios)):
        _print(console, runs[number * len(policies) : (number + 1) * len(policies)])


def _scenario(load: float, options: _Options) -> Scenario:
    return Scenario(
        load=load,
        num_slots=options["slots"],
        num_sessions=options["sessions"],
        seconds=options["seconds"],
        budget_s=options["budget_ms"] / 1000,
        hurried_s=None if options["hurried_ms"] is None else options["hurried_ms"] / 1000,
        look_s=options["look_ms"] / 1000,
        engine=options["engine"],
        hangs_up=options["hang_up"],
        seed=options["seed"],
        typing=replace(Typing(), keys_per_burst=options["burst_keys"]),
    )


def _policies(order: str, shed: str, *, supersede: bool) -> list[Policy]:
    """Return what is asked for, beside the plain one where that is everything."""
    orders = list(ORDERS) if order == ALL else [order]
    sheds = [each.value for each in Shedding] if shed == ALL else [shed]
    policies = [Policy(each, when, supersede) for each in orders for when in sheds]
    return [PLAIN, *policies] if order == shed == ALL and supersede else policies


def _run(scenarios: Sequence[Scenario], policies: Sequence[Policy]) -> list[Run]:
    grid = [(scenario, requests, policy) for scenario, requests in _asked(scenarios) for policy in policies]
    console = Console(stderr=True)
    steps = track(grid, "Simulating", console=console, disable=not console.is_terminal)
    return [(at, policy, figures_of(simulate_one(at, policy, requests), at)) for at, requests, policy in steps]


def _asked(scenarios: Sequence[Scenario]) -> list[tuple[Scenario, list[TypedRequest]]]:
    try:
        return [(scenario, scenario.requests()) for scenario in scenarios]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--sessions") from error


def _as_dict(scenario: Scenario) -> dict[str, Any]:
    """Return what all runs have in common."""
    return {name: value for name, value in asdict(scenario).items() if name != "load"}


def _run_as_dict(scenario: Scenario, policy: Policy, figures: Figures) -> dict[str, Any]:
    found = {name: _rounded(value) for name, value in asdict(figures).items()}
    return {"asked_load": scenario.load, "policy": asdict(policy), **found}


def _rounded(value: float | tuple[float, ...] | None) -> dict[str, float] | float | None:
    if isinstance(value, tuple):
        return {f"p{percent}": round(each, 3) for percent, each in zip(PERCENTILES, value, strict=True)}
    return value if value is None else round(value, 4)


def _print(console: Console, runs: Sequence[Run]) -> None:
    """Print the policies' figures on one scenario."""
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
