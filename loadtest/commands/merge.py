"""`loadtest merge`: merges the documents of one run on several machines."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import click

from loadtest.commands.outcome import Refused, deliver, output_options
from loadtest.report.document import DocumentError, RunDocument, TargetResult, read_document
from loadtest.report.gate import Condition, GateError, parse_gates
from loadtest.stats.run_stats import merge as merge_stats
from loadtest.traffic.trace import join_digests


class _Options(TypedDict):
    gates: tuple[str, ...]
    out: Path | None
    html: Path | None
    as_json: bool


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output_options
def merge(files: tuple[Path, ...], **options: Unpack[_Options]) -> None:
    """Add up FILES, the documents of all machines that had a share of one run.

    \b
    Example:
      loadtest merge part-*.json --out report.json --html report.html
    """
    try:
        gates = parse_gates(options["gates"])
        document = merge_documents([read_document(file) for file in files], gates)
    except (DocumentError, GateError, ValueError) as error:
        raise Refused(str(error)) from error
    sys.exit(deliver(document, options["out"], options["html"], as_json=options["as_json"]))


def merge_documents(documents: Sequence[RunDocument], gates: Sequence[Condition] = ()) -> RunDocument:
    """Return the merged document of one run, with these gates or else those of the first document.

    Raises:
        ValueError: they are of different runs, or a worker is in two of them.

    """
    first = documents[0]
    for each in documents:
        if each.scenario != first.scenario:
            msg = f"documents of different scenarios: {each.scenario['name']} and {first.scenario['name']}"
            raise ValueError(msg)
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
