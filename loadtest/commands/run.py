"""`loadtest run`."""

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import Console

from loadtest.commands.outcome import Exit, Refused, deliver, output_options
from loadtest.driving.blocks import BlocksError
from loadtest.driving.checks import CheckError
from loadtest.driving.live import Live
from loadtest.driving.run import Machine, RunResult, default_workers, run_scenario
from loadtest.driving.worker_pool import RunError
from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.gate import Condition, GateError, parse_gates
from loadtest.targets import TargetError, TargetSpec, nearest_target, parse_target
from loadtest.traffic.scenario import Scenario, ScenarioError

_BLOCKS = 8


class _Options(TypedDict):
    overrides: tuple[str, ...]
    sessions: int | None
    duration: float | None
    gates: tuple[str, ...]
    targets: tuple[str, ...]
    servers: tuple[str, ...]


class _Machines(TypedDict):
    workers: int | None
    worker_index: int
    num_workers: int
    start_at: float | None


class _Output(TypedDict):
    out: Path | None
    html: Path | None
    as_json: bool


class _All(_Options, _Machines, _Output):
    is_interleaved: bool
    blocks: int | None


@click.command()
@click.argument("scenario")
@click.option("--target", "targets", multiple=True, metavar="[NAME=]KIND://HOST:PORT", help="Whom to ask.")
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="HOST:PORT,HOST:PORT",
    help="Servers of which each editor asks the nearest that works; short for --target grpc+nearest://...",
)
@click.option(
    "--interleave/--in-turn",
    "is_interleaved",
    help="Whether targets take turns in blocks of the run, or each has a whole run.  [default: in-turn]",
)
@click.option("--blocks", type=click.IntRange(1), help=f"How many blocks with --interleave.  [default: {_BLOCKS}]")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Set one key of the scenario.")
@click.option("--sessions", type=int, help="Instead of the scenario's number.")
@click.option("--duration", type=float, metavar="SECONDS", help="Instead of the scenario's.")
@click.option("--workers", type=click.IntRange(1), help="Processes on this machine.  [default: its cores less one]")
@click.option(
    "--worker-index", type=click.IntRange(0), default=0, help="Which of several machines this one is, from 0."
)
@click.option("--num-workers", type=click.IntRange(1), default=1, help="Number of machines; each has --workers.")
@click.option("--start-at", type=float, metavar="UNIX_TIME", help="When all machines start.")
@output_options
def run(scenario: str, **options: Unpack[_All]) -> None:
    """Run SCENARIO, a packaged one by its name or a file, against one or more targets.

    KIND is grpc (a Session stream for each editor), grpc+complete (a call for each request), grpc+nearest (a Session
    stream to the nearest of several hosts that works), openai+http, llama+http or tabby+http. With several hosts,
    HOST:PORT,HOST:PORT, each serves a region. Options follow as in ?model=NAME.

    Ends with status 0 on success, 1 if a gate failed or more than 5% of the requests did (a gate on error_rate sets
    another limit), 2 if the input is bad and nothing was sent, 3 if the run is invalid and says nothing about its
    target, and 130 after Ctrl-C, with a report of the run until then.

    \b
    Examples:
      loadtest run steady --target grpc://127.0.0.1:50051 --gate 'pause_ttft_ms_p95<200,error_rate<0.001'
      loadtest run steady --interleave --target 'grpc://127.0.0.1:50051' \\
          --target 'vllm=openai+http://127.0.0.1:8000?model=m&fim=<PRE>{prefix}<SUF>{suffix}<MID>'
    """
    try:
        loaded = _load(scenario, options)
        gates = parse_gates(options["gates"])
        specs = _specs(options)
        machine = _machine(options)
        workers = options["workers"] or min(default_workers(), loaded.sessions)
        blocks = (options["blocks"] or _BLOCKS) if options["is_interleaved"] else 1
        with Live(Console(stderr=True)) as live:
            found = run_scenario(loaded, specs, workers=workers, blocks=blocks, progress=live.show, machine=machine)
    except (ScenarioError, GateError, TargetError, CheckError, BlocksError, RunError) as error:
        raise Refused(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    document = make_document(loaded, specs, gates, found)
    end = deliver(document, options["out"], options["html"], as_json=options["as_json"])
    if found.failure:
        click.echo(f"The run ended early: {found.failure}", err=True)
        end = Exit.INVALID
    if machine.count > 1 and end is Exit.INVALID and not found.failure:
        end = Exit.WELL  # the other machines' workers are missing, as they must be: the sum is judged
    sys.exit(end)


def make_document(
    scenario: Scenario, specs: Sequence[TargetSpec], gates: Sequence[Condition], found: RunResult
) -> RunDocument:
    """Return the document of a run. Targets that had no turn are left out."""
    targets = [
        TargetResult.of(spec.name, spec.uri, spec.kind, found.stats_by_target[spec.name], scenario.criteria, gates)
        for spec in specs
        if spec.name in found.stats_by_target
    ]
    return RunDocument(
        version=version("completion-server"),
        scenario=scenario.model_dump(mode="json"),
        schedule_digest=found.schedule_digest,
        started_at=found.started_at,
        targets=tuple(targets),
        interrupted=found.interrupted,
        num_workers=found.num_workers,
        gates=tuple(gates),
    )


def _load(name_or_path: str, options: _All) -> Scenario:
    found = Scenario.load(name_or_path, options["overrides"])
    return found.scaled(sessions=options["sessions"], duration_s=options["duration"])


def _specs(options: _All) -> list[TargetSpec]:
    found = [parse_target(each) for each in options["targets"]]
    found += [nearest_target(each) for each in options["servers"]]
    if not found:
        msg = "there is nobody to ask: give a --target, or several servers with --server HOST:PORT,HOST:PORT"
        raise Refused(msg)
    return found


def _machine(options: _All) -> Machine:
    index, count, start_at = options["worker_index"], options["num_workers"], options["start_at"]
    if index >= count:
        msg = f"--worker-index must be below --num-workers = {count}, got {index}"
        raise Refused(msg)
    if count > 1 and start_at is None:
        msg = "with several machines they must start together: say when with --start-at, as Unix time"
        raise Refused(msg)
    if start_at is not None and (len(options["targets"]) + len(options["servers"]) > 1 or options["is_interleaved"]):
        msg = "--start-at is the time of one run: with it there can be one --target only, and no --interleave"
        raise Refused(msg)
    return Machine(index, count, start_at)
