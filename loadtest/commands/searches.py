"""The command that finds how many sessions pass a gate: `capacity`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import click
from rich.console import Console

from loadtest.commands.outcome import Exit, Live, Refused, credential_options, refusing, scenario_options, secured
from loadtest.driving.run import default_workers, run_scenario
from loadtest.report.document import Condition, judge, parse_gates
from loadtest.report.figures import figures, reasons_invalid, without_nan
from loadtest.search import Capacity, SearchSettings, Trial, find_capacity
from loadtest.targets import Credentials, TargetSpec, parse_target
from loadtest.traffic.scenario import Scenario


@click.command()
@click.argument("scenario")
@click.option(
    "--target", "targets", multiple=True, required=True, metavar="[NAME=]KIND://HOST:PORT", help="Whom to ask."
)
@scenario_options
@click.option("--gate", "gates", multiple=True, required=True, metavar="FIGURE<NUMBER[,...]", help="What must hold.")
@click.option("--from", "from_sessions", type=click.IntRange(1), default=100, show_default=True, help="Where to begin.")
@click.option("--to", "to_sessions", type=click.IntRange(1), default=20_000, show_default=True, help="Where to end.")
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
    help="Runs of each count, an odd number; most of them decide.",
)
@credential_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each target.")
def capacity(
    *,
    scenario: str,
    targets: tuple[str, ...],
    overrides: tuple[str, ...],
    duration: float | None,
    workers: int | None,
    gates: tuple[str, ...],
    from_sessions: int,
    to_sessions: int,
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
        if from_sessions > to_sessions or repeats % 2 == 0:
            raise Refused("--to must be at least --from, and --repeats odd")
        conditions, settings = parse_gates(gates), SearchSettings(from_sessions, to_sessions, tolerance, repeats)
        loaded = Scenario.load(scenario, overrides).scaled(duration_s=duration)
        specs = secured(map(parse_target, targets), credentials)
        with Live(Console(stderr=True)) as live:
            runner = _Runner(loaded, conditions, workers or default_workers(), live)
            for spec in specs:
                run_once, say = partial(runner.run, spec), _say_trial(spec.name, conditions)
                found[spec.name] = find_capacity(settings, run_once, say)
                if found[spec.name].is_interrupted:
                    break
    for name, each in found.items():
        click.echo(json.dumps(_capacity_json(name, each), allow_nan=False) if as_json else _describe(name, each))
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
    conditions: Sequence[Condition]
    workers: int
    live: Live

    def run(self, spec: TargetSpec, sessions: int, repeat: int = 0) -> Trial:
        """Run a target once; each repeat has its own traffic."""
        seed = f"{self.scenario.seed}/{repeat}" if repeat else None
        scenario = self.scenario.scaled(sessions=sessions, seed=seed)
        workers = min(self.workers, sessions)
        found = run_scenario(scenario, [spec], workers=workers, progress=self.live.show)
        stats = found.stats_by_target.get(spec.name)
        if found.interrupted or stats is None:
            return Trial(sessions, is_passed=False, is_interrupted=True)
        values, reasons = figures(stats, scenario.criteria), reasons_invalid(stats)
        is_passed = all(each.is_met for each in judge(self.conditions, values)) and not reasons
        return Trial(sessions, is_passed, values, reasons)


def _describe(name: str, found: Capacity) -> str:
    """Return the result of a search as a sentence."""
    if found.is_interrupted:
        return f"{name}: interrupted; so far {found.sessions:,} sessions pass"
    if found.fails_at is None:
        return f"{name}: {found.sessions:,} sessions pass, the most that were asked for"
    why = "where this machine could not keep up: the target may do more" if found.is_generator_bound else "which fail"
    return f"{name}: {found.sessions:,} sessions pass, up to {found.fails_at:,}, {why}"


def _capacity_json(name: str, found: Capacity) -> dict[str, object]:
    """Return the result of a search as a JSON object."""
    trials = [asdict(each) | {"figures": without_nan(each.figures)} for each in found.trials]
    return {"target": name} | asdict(found) | {"trials": trials}


def _say_trial(name: str, conditions: Sequence[Condition]) -> Callable[[Trial], None]:
    def say(trial: Trial) -> None:
        verdicts = ", ".join(f"{each.gate.figure} {each.said}" for each in judge(conditions, trial.figures))
        word = "invalid" if trial.invalid_because else "passes" if trial.is_passed else "fails"
        click.echo(f"{name}: {trial.sessions:,} sessions: {word} ({verdicts})", err=True)

    return say
