"""The command `usage`."""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

_BY = ("tenant", "user", "day")
_TOKENS = ("prompt", "cached", "completion")
_COLUMNS = ("requests", *_TOKENS, "computed")
_DAY_LENGTH = len("2026-01-31")
_WIDE = 200

Sums = dict[tuple[str, ...], Counter[str]]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--by", multiple=True, type=click.Choice(_BY), help="Add up by this alone; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each sum.")
def usage(files: tuple[Path, ...], by: tuple[str, ...], as_json: bool) -> None:
    """Add up usage records (records.usage_file), by default by tenant, user and day.

    Users are pseudonyms. Broken lines are named on standard error; the exit status is 1 then.

    \b
    Examples:
        completion-server usage usage.jsonl*
        completion-server usage --by tenant --by day usage.jsonl*
    """
    by = by or _BY
    sums: Sums = defaultdict(Counter)
    is_whole = True
    for path in files:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    _add(sums, json.loads(line), by)
                except (ValueError, TypeError, KeyError):
                    is_whole = False
                    click.echo(f"completion-server: {path}:{number}: is no usage record", err=True)
    rows = sorted(sums.items())
    if as_json:
        for key, figures in rows:
            click.echo(json.dumps(dict(zip(by, key, strict=True)) | {name: figures[name] for name in _COLUMNS}))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE).print(_table(rows, by))
    sys.exit(not is_whole)


def _add(sums: Sums, record: dict[str, str], by: tuple[str, ...]) -> None:
    """Add a record. Raises KeyError, TypeError or ValueError, and adds nothing, if it is none."""
    values = {"tenant": str(record["tenant"]), "user": str(record["user"]), "day": record["time"][:_DAY_LENGTH]}
    figures = {"requests": 1} | {name: int(record[f"{name}_tokens"]) for name in _TOKENS}
    figures["computed"] = figures["prompt"] + figures["completion"]
    sums[tuple(values[name] for name in by)].update(figures)


def _table(rows: list[tuple[tuple[str, ...], Counter[str]]], by: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name in by:
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name if name == "requests" else f"{name} tokens", justify="right")
    total: Counter[str] = Counter()
    for key, figures in rows:
        total.update(figures)
        table.add_row(*(Text(name or "-") for name in key), *_cells(figures))
    table.add_row("total", *("" for _ in by[1:]), *_cells(total), style="bold")
    return table


def _cells(figures: Counter[str]) -> list[str]:
    return [f"{figures[name]:,}" for name in _COLUMNS]
