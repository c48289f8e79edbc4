"""`loadtest run`."""

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console

from loadtest.commands.outcome import (
    Exit,
    Live,
    Refused,
    deliver,
    output_options,
    refusing,
    scenario_options,
    secured,
    tls_options,
)
from loadtest.driving.run import Machine, RunResult, default_workers, run_scenario
from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.gate import Condition, parse_gates
from loadtest.targets import TargetSpec, TlsFiles, nearest_target, parse_target
from loadtest.traffic.scenario import Scenario

_BLOCKS = 8


@click.command()
@click.argument("scenario")
@click.option("--target", "targets", multiple=True, metavar="[NAME=]KIND://HOST[:PORT]", help="Whom to ask.")
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="HOST[:PORT],HOST[:PORT]",
    help="Servers of which each editor asks the nearest that works; short for --target grpc+nearest://...",
)
@click.option(
    "--interleave/--in-turn",
    "is_interleaved",
    help="Whether targets take turns in blocks of the run, or each has a whole run.  [default: in-turn]",
)
@click.option("--blocks", type=click.IntRange(1), help=f"How many blocks with --interleave.  [default: {_BLOCKS}]")
@click.option("--sessions", type=int, help="Instead of the scenario's number.")
@scenario_options
@click.option(
    "--worker-index", type=click.IntRange(0), default=0, help="Which of several machines this one is, from 0."
)
@click.option("--num-workers", type=click.IntRange(1), default=1, help="Number of machines; each has --workers.")
@click.option("--start-at", type=float, metavar="UNIX_TIME", help="When all machines start.")
@tls_options
@output_options
def run(
    *,
    scenario: str,
    targets: tuple[str, ...],
    servers: tuple[str, ...],
    is_interleaved: bool,
    blocks: int | None,
    sessions: int | None,
    overrides: tuple[str, ...],
    duration: float | None,
    workers: int | None,
    worker_index: int,
    num_workers: int,
    start_at: float | None,
    tls: TlsFiles,
    gates: tuple[str, ...],
    out: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
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
    with refusing():
        loaded = Scenario.load(scenario, overrides).scaled(sessions=sessions, duration_s=duration)
        conditions = parse_gates(gates)
        specs = secured([*map(parse_target, targets), *map(nearest_target, servers)], tls)
        machine = Machine(worker_index, num_workers, start_at)
        _check(specs, machine, is_interleaved=is_interleaved)
        with Live(Console(stderr=True)) as live:
            found = run_scenario(
                loaded,
                specs,
                workers=workers or min(default_workers(), loaded.sessions),
                blocks=(blocks or _BLOCKS) if is_interleaved else 1,
                progress=live.show,
                machine=machine,
            )
    end = deliver(make_document(loaded, specs, conditions, found), out, html, as_json=as_json)
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


def _check(specs: Sequence[TargetSpec], machine: Machine, *, is_interleaved: bool) -> None:
    """Check that the options go together. Raises Refused."""
    if not specs:
        raise Refused("there is nobody to ask: give a --target, or several servers with --server HOST:PORT,HOST:PORT")
    if machine.index >= machine.count:
        raise Refused(f"--worker-index must be below --num-workers = {machine.count}, got {machine.index}")
    if machine.count > 1 and machine.start_at is None:
        raise Refused("with several machines they must start together: say when with --start-at, as Unix time")
    if machine.start_at is not None and (len(specs) > 1 or is_interleaved):
        raise Refused("--start-at is the time of one run: with it there can be one --target only, and no --interleave")
