"""The commands that run a scenario many times: `capacity` and `sweep`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console

from loadtest.commands.outcome import (
    NEW_FILE,
    Exit,
    Live,
    credential_options,
    parse_targets,
    refusing,
    scenario_options,
)
from loadtest.driving.run import default_workers, run_scenario
from loadtest.processes.meter import ProcessMeter
from loadtest.report.document import Condition, is_passed, judge, parse_gates
from loadtest.report.figures import figures, reasons_invalid, shown, without_nan
from loadtest.report.tables import print_table
from loadtest.search import (
    Capacity,
    Point,
    SearchError,
    SearchSettings,
    Sweep,
    Trial,
    find_capacity,
    render_sweep,
    run_sweep,
    sweep_table,
)
from loadtest.targets import Credentials, TargetSpec
from loadtest.traffic.scenario import Scenario

_WIDTH = 120
"""Width of tables without a terminal."""
_target_option = click.option(
    "--target", "targets", multiple=True, required=True, metavar="[NAME=]KIND://HOST:PORT", help="Whom to ask."
)


@click.command()
@click.argument("scenario")
@_target_option
@scenario_options
@click.option("--gate", "gates", multiple=True, required=True, metavar="FIGURE<NUMBER[,...]", help="What must hold.")
@click.option("--from", "from_sessions", type=int, default=100, show_default=True, help="Where to begin.")
@click.option("--to", "to_sessions", type=int, default=20_000, show_default=True, help="Where to end.")
@click.option("--tolerance", type=float, default=0.05, show_default=True, help="How exact, as a share.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Runs of each count; most of them decide.")
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
        loaded = Scenario.load(scenario, overrides).scaled(duration_s=duration)
        conditions, specs = parse_gates(gates), parse_targets(targets, credentials)
        settings = SearchSettings(from_sessions, to_sessions, tolerance, repeats)
        with Live(Console(stderr=True)) as live:
            runner = ScenarioRunner(loaded, conditions, workers or default_workers(), live)
            for spec in specs:
                run_once = partial(runner.run, spec)
                found[spec.name] = find_capacity(settings, run_once, _say_trial(spec.name, conditions))
                if found[spec.name].is_interrupted:
                    break
    for name, each in found.items():
        click.echo(json.dumps(capacity_json(name, each), allow_nan=False) if as_json else describe(name, each))
    sys.exit(_capacity_exit(list(found.values())))


@click.command()
@click.argument("scenario")
@_target_option
@scenario_options
@click.option("--sessions", "counts", metavar="N,N,...", help="Numbers of sessions.")
@click.option("--loads", metavar="X,X,...", help="Multiples of the scenario's number of sessions, instead.")
@click.option(
    "--pid", "pids", multiple=True, metavar="[TARGET=]PID", help="A server's process, to watch CPU and memory."
)
@credential_options
@click.option("--out", type=NEW_FILE, help="Write the figures as JSON.")
@click.option("--html", type=NEW_FILE, help="Write a page with the curves.")
def sweep(
    *,
    scenario: str,
    targets: tuple[str, ...],
    overrides: tuple[str, ...],
    duration: float | None,
    workers: int | None,
    counts: str | None,
    loads: str | None,
    pids: tuple[str, ...],
    credentials: Credentials,
    out: Path | None,
    html: Path | None,
) -> None:
    """Run several loads and draw the curves; at each load all targets take turns.

    \b
    Example:
      loadtest sweep steady --target grpc://127.0.0.1:50051 --pid 4711 --sessions 100,1000,5000,10000 --html curve.html
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with refusing():
        loaded = Scenario.load(scenario, overrides).scaled(duration_s=duration)
        specs = {spec.name: spec for spec in parse_targets(targets, credentials)}
        meters = parse_pids(pids, list(specs))
        sizes = parse_counts(counts, loads, loaded.sessions)
        with Live(Console(stderr=True)) as live:
            runner = ScenarioRunner(loaded, (), workers or default_workers(), live)
            points, is_interrupted = run_sweep(
                sizes, list(specs), lambda name, sessions: runner.run(specs[name], sessions), meters, _say_point
            )
    found = Sweep(version("completion-server"), loaded.model_dump(mode="json"), started_at, points, is_interrupted)
    if out is not None:
        out.write_text(json.dumps(found.as_json(), allow_nan=False) + "\n", encoding="utf-8")
    if html is not None:
        html.write_text(render_sweep(found), encoding="utf-8")
    console = Console()
    print_table(sweep_table(found), console if console.is_terminal else Console(width=_WIDTH))
    for trouble in found.troubles():
        console.print(trouble, style="red", markup=False, highlight=False)
    if found.interrupted:
        sys.exit(Exit.INTERRUPTED)
    sys.exit(Exit.INVALID if any(each.invalid_because for each in found.points) else Exit.WELL)


class ScenarioRunner:
    """Runs a scenario at a session count and checks its figures against a gate."""

    def __init__(
        self,
        scenario: Scenario,
        conditions: Sequence[Condition],
        workers: int,
        live: Live | None = None,
    ) -> None:
        self._scenario = scenario
        self._conditions = conditions
        self._workers = workers
        self._progress = None if live is None else live.show

    def run(self, spec: TargetSpec, sessions: int, repeat: int = 0) -> Trial:
        """Run a target once; each repeat has its own traffic."""
        seed = f"{self._scenario.seed}/{repeat}" if repeat else None
        scenario = self._scenario.scaled(sessions=sessions, seed=seed)
        found = run_scenario(scenario, [spec], workers=min(self._workers, sessions), progress=self._progress)
        stats = found.stats_by_target.get(spec.name)
        if found.interrupted or stats is None:
            return Trial(sessions, is_passed=False, is_interrupted=True)
        values, reasons = figures(stats, scenario.criteria), reasons_invalid(stats)
        return Trial(sessions, is_passed(self._conditions, values) and not reasons, values, reasons)


def parse_counts(counts: str | None, loads: str | None, sessions: int) -> list[int]:
    """Return session counts, rising, from one of two lists. Raises SearchError unless one is given and is valid."""
    if (counts is None) == (loads is None):
        raise SearchError("say either --sessions or --loads")
    option, text = ("--sessions", counts) if counts is not None else ("--loads", loads)
    try:
        found = {int(each) if loads is None else round(float(each) * sessions) for each in (text or "").split(",")}
    except (ValueError, OverflowError) as error:
        raise SearchError(f"{option}: numbers with commas between them, got {text!r}") from error
    if min(found) < 1:
        raise SearchError(f"{option}: every run needs at least one session, got {text!r}")
    return sorted(found)


def parse_pids(texts: Sequence[str], targets: Sequence[str]) -> dict[str, ProcessMeter]:
    """Return meters by target. Raises SearchError for a bad text or target, ProcessMeterError for no process."""
    found = {}
    for text in texts:
        name, _, pid = text.rpartition("=")
        if not name and len(targets) == 1:
            name = targets[0]
        if name not in targets or not pid.isdecimal():
            raise SearchError(f"--pid: [TARGET=]PID with a target of {', '.join(targets)}, got {text!r}")
        found[name] = ProcessMeter(int(pid))
    return found


def describe(name: str, found: Capacity) -> str:
    """Return the result of a search as a sentence."""
    if found.is_interrupted:
        return f"{name}: interrupted; so far {found.sessions:,} sessions pass"
    if found.fails_at is None:
        return f"{name}: {found.sessions:,} sessions pass, the most that were asked for"
    why = "where this machine could not keep up: the target may do more" if found.is_generator_bound else "which fail"
    return f"{name}: {found.sessions:,} sessions pass, up to {found.fails_at:,}, {why}"


def capacity_json(name: str, found: Capacity) -> dict[str, object]:
    """Return the result of a search as a JSON object."""
    trials = [asdict(each) | {"figures": without_nan(each.figures)} for each in found.trials]
    return {"target": name} | asdict(found) | {"trials": trials}


def _capacity_exit(found: Sequence[Capacity]) -> Exit:
    if any(each.is_interrupted for each in found):
        return Exit.INTERRUPTED
    if any(each.is_generator_bound for each in found):
        return Exit.INVALID
    return Exit.WELL if all(each.sessions for each in found) else Exit.GATE_FAILED


def _say_trial(name: str, conditions: Sequence[Condition]) -> Callable[[Trial], None]:
    def say(trial: Trial) -> None:
        verdicts = ", ".join(f"{each.condition.figure} {each.said}" for each in judge(conditions, trial.figures))
        word = "invalid" if trial.invalid_because else "passes" if trial.is_passed else "fails"
        click.echo(f"{name}: {trial.sessions:,} sessions: {word} ({verdicts})", err=True)

    return say


def _say_point(point: Point) -> None:
    seen = shown("seen_per_s", point.figures.get("seen_per_s"))
    click.echo(f"{point.target}: {point.sessions:,} sessions: {seen} seen/s", err=True)
