"""The command that finds how many sessions pass a gate: `capacity`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click
from rich.console import Console

from loadtest.commands.outcome import (
    Exit,
    Live,
    Refused,
    credential_options,
    gate_option,
    refusing,
    scenario_options,
    secured,
    workers_option,
)
from loadtest.driving.run import default_workers, run_scenario
from loadtest.report.document import Condition, judge, parse_gates
from loadtest.report.figures import figures, reasons_invalid, without_nan
from loadtest.search import Capacity, SearchSettings, Trial, find_capacity
from loadtest.targets import Credentials, TargetSpec, parse_target
from loadtest.traffic.scenario import Scenario


@click.command()
@scenario_options
@click.option(
    "--target", "targets", multiple=True, required=True, metavar="[NAME=]KIND://HOST:PORT", help="Whom to ask."
)
@workers_option
@gate_option("gates", required=True, help="What must hold.")
@click.option("--from", "first", type=click.IntRange(1), default=100, show_default=True, help="Where to begin.")
@click.option("--to", "last", type=click.IntRange(1), default=20_000, show_default=True, help="Where to end.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="How exact, as a share.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Runs of each count, odd; most of them decide.",
)
@credential_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each target.")
def capacity(
    *,
    scenario: Scenario,
    targets: tuple[str, ...],
    workers: int | None,
    gates: tuple[str, ...],
    first: int,
    last: int,
    tolerance: float,
    repeats: int,
    credentials: Credentials,
    as_json: bool,
) -> None:
    """Find how many sessions pass a gate.

    Exit status: 0 success, 1 not even one session passes, 2 bad input, 3 this machine was the limit, 130 Ctrl-C.

    \b
    Example:
      loadtest capacity steady --target grpc://127.0.0.1:50051 --gate 'pause_ttft_ms_p95<200' --from 100 --to 20000
    """
    found: dict[str, Capacity] = {}
    with refusing():
        if first > last or repeats % 2 == 0:
            raise Refused("--to must be at least --from, and --repeats odd")
        settings, specs = (
            SearchSettings(first, last, tolerance, repeats),
            secured(map(parse_target, targets), credentials),
        )
        with Live(Console(stderr=True)) as live:
            for spec in specs:
                runner = _Runner(scenario, spec, parse_gates(gates), workers or default_workers(), live)
                found[spec.name] = find_capacity(settings, runner.run)
                if found[spec.name].is_interrupted:
                    break
    for name, each in found.items():
        click.echo(_as_json(name, each) if as_json else _describe(name, each))
    results = found.values()
    if any(each.is_interrupted for each in results):
        sys.exit(Exit.INTERRUPTED)
    if any(each.is_generator_bound for each in results):
        sys.exit(Exit.INVALID)
    sys.exit(Exit.WELL if all(each.sessions for each in results) else Exit.GATE_FAILED)


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs a scenario at a session count and checks its figures against a gate."""

    scenario: Scenario
    spec: TargetSpec
    conditions: Sequence[Condition]
    workers: int
    live: Live

    def run(self, sessions: int, repeat: int) -> Trial:
        """Run the target once and print the verdict; each repeat has its own traffic."""
        name, seed = self.spec.name, f"{self.scenario.seed}/{repeat}" if repeat else None
        scenario = self.scenario.scaled(sessions=sessions, seed=seed)
        found = run_scenario(scenario, [self.spec], workers=min(self.workers, sessions), progress=self.live.show)
        stats = found.stats_by_target.get(name)
        if found.interrupted or stats is None:
            return Trial(sessions, is_passed=False, is_interrupted=True)
        values, reasons = figures(stats, scenario.criteria), reasons_invalid(stats)
        verdicts = judge(self.conditions, values)
        is_passed = all(each.is_met for each in verdicts) and not reasons
        word = "invalid" if reasons else "passes" if is_passed else "fails"
        said = ", ".join(f"{each.gate.figure} {each.said}" for each in verdicts)
        click.echo(f"{name}: {sessions:,} sessions: {word} ({said})", err=True)
        return Trial(sessions, is_passed, values, reasons)


def _describe(name: str, found: Capacity) -> str:
    """Return the result of a search as a sentence."""
    if found.is_interrupted:
        return f"{name}: interrupted; so far {found.sessions:,} sessions pass"
    if found.fails_at is None:
        return f"{name}: {found.sessions:,} sessions pass, the most that were asked for"
    why = "where this machine could not keep up: the target may do more" if found.is_generator_bound else "which fail"
    return f"{name}: {found.sessions:,} sessions pass, up to {found.fails_at:,}, {why}"


def _as_json(name: str, found: Capacity) -> str:
    trials = [asdict(each) | {"figures": without_nan(each.figures)} for each in found.trials]
    return json.dumps({"target": name} | asdict(found) | {"trials": trials}, allow_nan=False)
