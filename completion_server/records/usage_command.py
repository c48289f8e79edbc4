"""The command `usage`."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from completion_server.records.reading import lines_of
from completion_server.records.usage import Sums
from completion_server.records.usage_report import BY, UsageReport

_COLUMNS = ("requests", "prompt", "cached", "completion", "computed")
_WIDE = 200


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--by", multiple=True, type=click.Choice(BY), help="Add up by this alone; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each sum.")
def usage(files: tuple[Path, ...], by: tuple[str, ...], as_json: bool) -> None:
    """Add up usage records (records.usage_file), by default by tenant, user and day.

    Reads rotated files and packed ones (.gz). Users are pseudonyms. Broken lines are named on standard error; the exit
    status is 1 then.

    \b
    Examples:
        completion-server usage usage.jsonl usage.jsonl.*
        completion-server usage --by tenant --by day usage.jsonl*
    """
    report = UsageReport(by or BY)
    for path in files:
        report.add_lines(lines_of(path))
    if as_json:
        for key, sums in sorted(report.sums.items()):
            click.echo(
                json.dumps(dict(zip(report.by, key, strict=True)) | _figures(sums) | {"outcomes": sums.outcomes})
            )
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
        console.print(_table(report))
    for fault in report.broken:
        click.echo(f"completion-server: {fault}", err=True)
    if report.broken:
        sys.exit(1)


def _figures(sums: Sums) -> dict[str, int]:
    tokens = (sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens)
    return dict(zip(_COLUMNS, (sums.num_requests, *tokens, sums.prompt_tokens + sums.completion_tokens), strict=True))


def _table(report: UsageReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name in report.by:
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name if name == "requests" else f"{name} tokens", justify="right")
    for key, sums in sorted(report.sums.items()):
        table.add_row(*(Text(name or "-") for name in key), *(f"{value:,}" for value in _figures(sums).values()))
    total = ("total", *("" for _ in report.by[1:]))
    table.add_row(*total, *(f"{value:,}" for value in _figures(report.total).values()), style="bold")
    return table
