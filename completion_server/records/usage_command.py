"""The command `usage`."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from completion_server.records.reading import lines_of
from completion_server.records.sums import BY, TOKENS, UsageSums
from completion_server.records.writer import Record

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
        completion-server usage usage.jsonl*
        completion-server usage --by tenant --by day usage.jsonl*
    """
    report = UsageSums(by or BY)
    for path in files:
        report.add_lines(lines_of(path))
    if as_json:
        for key, total in sorted(report.sums.items()):
            found = dict(zip(report.by, key, strict=True)) | _figures(total) | {"outcomes": total["outcomes"]}
            click.echo(json.dumps(found))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE).print(_table(report))
    for fault in report.broken:
        click.echo(f"completion-server: {fault}", err=True)
    if report.broken:
        sys.exit(1)


def _figures(total: Record) -> dict[str, int]:
    computed = total["prompt_tokens"] + total["completion_tokens"]
    return dict(zip(_COLUMNS, (total["requests"], *(total[name] for name in TOKENS), computed), strict=True))


def _cells(total: Record) -> list[str]:
    return [f"{value:,}" for value in _figures(total).values()]


def _table(report: UsageSums) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name in report.by:
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name if name == "requests" else f"{name} tokens", justify="right")
    for key, total in sorted(report.sums.items()):
        table.add_row(*(Text(name or "-") for name in key), *_cells(total))
    table.add_row("total", *("" for _ in report.by[1:]), *_cells(report.total), style="bold")
    return table
