"""The commands that read documents of runs: `merge`, `report` and `compare`."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.commands.outcome import FILE, Refused, deliver, output_options, refusing
from loadtest.report.compare import CONFIDENCE, Interval, RunDifferences, compare_documents
from loadtest.report.document import DocumentError, RunDocument, TargetResult, named_alike, read_document
from loadtest.report.gate import Condition, judge, parse_gates
from loadtest.report.tables import print_differences
from loadtest.stats import merge as merge_stats
from loadtest.traffic.typed import join_digests


@click.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@output_options
def merge(
    files: tuple[Path, ...], gates: tuple[str, ...], out: Path | None, html: Path | None, *, as_json: bool
) -> None:
    """Add up FILES, the documents of all machines that had a share of one run.

    \b
    Example:
      loadtest merge part-*.json --out report.json --html report.html
    """
    try:
        document = merge_documents([read_document(file) for file in files], parse_gates(gates))
    except ValueError as error:
        raise Refused(str(error)) from error
    sys.exit(deliver(document, out, html, as_json=as_json))


def merge_documents(documents: Sequence[RunDocument], gates: Sequence[Condition] = ()) -> RunDocument:
    """Return one run's merged document, with these gates or its first's. Raises ValueError for different runs."""
    first = documents[0]
    for each in documents:
        if each.scenario != first.scenario:
            raise ValueError(f"documents of different scenarios: {each.scenario['name']} and {first.scenario['name']}")
    gates = gates or first.gates
    targets = []
    for target in first.targets:
        stats = merge_stats(each.target(target.name).stats for each in documents)
        targets.append(TargetResult.of(target.name, target.uri, target.kind, stats, first.criteria, gates))
    return replace(
        first,
        targets=tuple(targets),
        gates=tuple(gates),
        interrupted=any(each.interrupted for each in documents),
        started_at=min(each.started_at for each in documents),
        schedule_digest=join_digests(each.schedule_digest for each in documents),
    )


@click.command()
@click.argument("file", type=FILE)
@output_options
def report(file: Path, gates: tuple[str, ...], out: Path | None, html: Path | None, *, as_json: bool) -> None:
    """Show the run in FILE (written with --out) again: as tables, as a page, or against other gates.

    \b
    Example:
      loadtest report run.json --html run.html --gate 'error_rate<0.001'
    """
    with refusing():
        document, conditions = read_document(file), parse_gates(gates)
    if conditions:
        targets = tuple(replace(each, verdicts=judge(conditions, each.figures)) for each in document.targets)
        document = replace(document, targets=targets, gates=conditions)
    sys.exit(deliver(document, out, html, as_json=as_json))


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
    for found in compare_documents(*documents, pairs, confidence):
        if as_json:
            click.echo(json.dumps(differences_json(found, confidence), allow_nan=False))
        else:
            print_differences(found, Console(), confidence)


def differences_json(found: RunDifferences, confidence: float) -> dict[str, Any]:
    """Return the differences for JSON."""
    return {
        "first": found.first,
        "second": found.second,
        "is_paired": found.is_paired,
        "num_slices": found.num_slices,
        "confidence": confidence,
        "warnings": list(found.warnings),
        "figures": {
            each.figure: {
                "first": _number(each.first),
                "second": _number(each.second),
                "change": each.change.value,
                "difference": _ends(each.difference),
                "ratio": _ends(each.ratio),
            }
            for each in found.differences
        },
    }


def _pairs(
    first: RunDocument, second: RunDocument, target: str | None, against: str | None
) -> list[tuple[TargetResult, TargetResult]]:
    """Return the targets to compare. Raises DocumentError if there are none."""
    if target is not None:
        return [(first.target(target), second.target(against or target))]
    if against is not None:
        return [(each, second.target(against)) for each in first.targets]
    pairs = list(named_alike(first, second))
    if not pairs:
        names = [", ".join(each.name for each in document.targets) for document in (first, second)]
        msg = f"no target is in both: A has {names[0]}, B has {names[1]}; name two with --target and --against"
        raise DocumentError(msg)
    return pairs


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")


def _ends(interval: Interval) -> list[float] | None:
    return None if math.isnan(interval.low) else [float(f"{end:.6g}") for end in (interval.low, interval.high)]
