"""The commands that run a scenario and that read documents of runs: `run`, `merge`, `report` and `compare`."""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console

from loadtest.commands.outcome import (
    FILE,
    Exit,
    Live,
    Output,
    Refused,
    credential_options,
    grouped,
    output_options,
    refusing,
    scenario_options,
    secured,
    workers_option,
)
from loadtest.driving.run import Machine, RunResult, default_workers, run_scenario
from loadtest.report.compare import CONFIDENCE
from loadtest.report.compare import compare as compare_targets
from loadtest.report.document import Condition, DocumentError, RunDocument, TargetResult, read_document
from loadtest.report.tables import print_differences
from loadtest.stats import merge as merge_stats
from loadtest.targets import Credentials, TargetSpec, nearest_target, parse_target
from loadtest.terminal import wide_console
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import join_digests

_BLOCKS = 8
_EXAMPLES = """\b
Examples:
  loadtest run steady --target grpc://127.0.0.1:50051 --gate 'pause_ttft_ms_p95<200,error_rate<0.001'
  loadtest run steady --interleave --target 'grpc://127.0.0.1:50051' \\
      --target 'vllm=openai+http://127.0.0.1:8000?model=m&fim=<PRE>{prefix}<SUF>{suffix}<MID>'
"""


@click.command(epilog=_EXAMPLES)
@scenario_options
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
@click.option("--blocks", type=click.IntRange(1), default=_BLOCKS, show_default=True, help="How many, interleaved.")
@click.option("--sessions", type=int, help="Instead of the scenario's number.")
@workers_option
@grouped(
    "machine",
    lambda worker_index, num_workers, start_at: Machine(worker_index, num_workers, start_at),
    click.option("--worker-index", type=click.IntRange(0), default=0, help="Which of several machines, from 0."),
    click.option("--num-workers", type=click.IntRange(1), default=1, help="Number of machines."),
    click.option("--start-at", type=float, metavar="UNIX_TIME", help="When all machines start."),
)
@credential_options()
@output_options
def run(
    *,
    scenario: Scenario,
    targets: tuple[str, ...],
    servers: tuple[str, ...],
    is_interleaved: bool,
    blocks: int,
    sessions: int | None,
    workers: int | None,
    machine: Machine,
    credentials: Credentials,
    output: Output,
) -> None:
    """Run SCENARIO, a packaged one by its name or a file, against one or more targets.

    KIND is grpc (a Session stream for each editor), grpc+complete (a call for each request), grpc+nearest (a Session
    stream to the nearest of several hosts that works), openai+http, llama+http or tabby+http. With several hosts,
    HOST:PORT,HOST:PORT, each serves a region. Options follow as in ?model=NAME.

    Ends with status 0 on success, 1 if a gate failed or more than 5% of the requests did (a gate on error_rate sets
    another limit), 2 if the input is bad and nothing was sent, 3 if the run is invalid and says nothing about its
    target, and 130 after Ctrl-C, with a report of the run until then.
    """
    with refusing():
        scenario = scenario.scaled(sessions=sessions)
        specs = secured([*map(parse_target, targets), *map(nearest_target, servers)], credentials)
        check(scenario, specs, machine, is_interleaved=is_interleaved)
        num_workers, num_blocks = workers or min(default_workers(), scenario.sessions), blocks if is_interleaved else 1
        with Live(Console(stderr=True)) as live:
            found = run_scenario(
                scenario, specs, workers=num_workers, blocks=num_blocks, progress=live.show, machine=machine
            )
    end = output.deliver(make_document(scenario, specs, output.gates, found))
    if found.failure:
        click.echo(f"The run ended early: {found.failure}", err=True)
        end = Exit.INVALID
    elif machine.count > 1 and end is Exit.INVALID:
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


def check(scenario: Scenario, specs: Sequence[TargetSpec], machine: Machine, *, is_interleaved: bool) -> None:
    """Check that the options go together. Raises Refused."""
    if not specs:
        raise Refused("there is nobody to ask: give a --target, or several servers with --server HOST:PORT,HOST:PORT")
    if machine.index >= machine.count:
        raise Refused(f"--worker-index must be below --num-workers = {machine.count}, got {machine.index}")
    if machine.count > 1 and machine.start_at is None:
        raise Refused("with several machines they must start together: say when with --start-at, as Unix time")
    if machine.start_at is not None and (len(specs) > 1 or is_interleaved):
        raise Refused("--start-at is the time of one run: with it there can be one --target only, and no --interleave")
    others = [spec.name for spec in specs if not spec.kind.startswith("grpc")]
    if scenario.editor.mode == "next_edit" and others:
        raise Refused(f"editor.mode: only grpc targets answer requests for next edits, not {', '.join(others)}")


@click.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@output_options
def merge(files: tuple[Path, ...], output: Output) -> None:
    """Add up FILES, the documents of all machines that had a share of one run.

    \b
    Example:
      loadtest merge part-*.json --out report.json --html report.html
    """
    with refusing():
        document = merge_documents([read_document(file) for file in files], output.gates)
    sys.exit(output.deliver(document))


def merge_documents(documents: Sequence[RunDocument], gates: Sequence[Condition] = ()) -> RunDocument:
    """Return one run's merged document, with these gates or its first's. Raises DocumentError for different runs."""
    first = documents[0]
    if others := [each.scenario["name"] for each in documents if each.scenario != first.scenario]:
        raise DocumentError(f"documents of different scenarios: {others[0]} and {first.scenario['name']}")
    gates = tuple(gates or first.gates)
    targets = []
    for each in first.targets:
        try:
            stats = merge_stats(document.target(each.name).stats for document in documents)
        except ValueError as error:
            raise DocumentError(str(error)) from error
        targets.append(TargetResult.of(each.name, each.uri, each.kind, stats, first.criteria, gates))
    changes = {
        "targets": tuple(targets),
        "gates": gates,
        "interrupted": any(each.interrupted for each in documents),
        "started_at": min(each.started_at for each in documents),
        "schedule_digest": join_digests(each.schedule_digest for each in documents),
    }
    return first.model_copy(update=changes)


@click.command()
@click.argument("file", type=FILE)
@output_options
def report(file: Path, output: Output) -> None:
    """Show the run in FILE (written with --out) again: as tables, as a page, or against other gates.

    \b
    Example:
      loadtest report run.json --html run.html --gate 'error_rate<0.001'
    """
    with refusing():
        document = read_document(file)
    sys.exit(output.deliver(document.judged(output.gates) if output.gates else document))


@click.command()
@click.argument("first", metavar="A", type=FILE)
@click.argument("second", metavar="B", type=FILE)
@click.option("--target", metavar="NAME", help="Compare this target only.  [default: each target in both]")
@click.option("--against", metavar="NAME", help="Name of the target in B, if it differs from that in A.")
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.9999),
    default=CONFIDENCE,
    show_default=True,
    help="How often an interval holds the truth.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each pair of targets.")
def compare(
    first: Path, second: Path, target: str | None, against: str | None, confidence: float, *, as_json: bool
) -> None:
    """Report the differences from A to B that exceed noise. Both are documents of runs; they may be the same file.

    \b
    Examples:
      loadtest compare before.json after.json
      loadtest compare run.json run.json --target ours --against vllm
    """
    with refusing():
        documents = read_document(first), read_document(second)
        pairs = _pairs(*documents, target, against)
    for pair in pairs:
        found = compare_targets(documents, pair, confidence)
        if as_json:
            click.echo(json.dumps(found.as_json(), allow_nan=False))
        else:
            print_differences(found, wide_console())


def _pairs(
    first: RunDocument, second: RunDocument, target: str | None, against: str | None
) -> list[tuple[TargetResult, TargetResult]]:
    """Return the targets to compare: by name, or the single ones. Raises DocumentError if there are none."""
    if target is not None:
        return [(first.target(target), second.target(against or target))]
    if against is not None:
        return [(each, second.target(against)) for each in first.targets]
    if len(first.targets) == len(second.targets) == 1:
        return [(first.targets[0], second.targets[0])]
    pairs = [(each, other) for each in first.targets for other in second.targets if each.name == other.name]
    if not pairs:
        names = [", ".join(each.name for each in document.targets) for document in (first, second)]
        msg = f"no target is in both: A has {names[0]}, B has {names[1]}; name two with --target and --against"
        raise DocumentError(msg)
    return pairs
