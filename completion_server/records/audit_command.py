"""The commands `audit`."""

import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from completion_server.core.errors import ConfigError
from completion_server.records.chain import Sealer, verify
from completion_server.records.reading import lines_of
from completion_server.records.secrets import read_secret

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def audit() -> None:
    """Work with audit logs (records.audit_file)."""


@audit.command("verify")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--secret-file", type=_FILE, help="The secret of the log, if it has one (records.audit_secret_file).")
def verify_command(files: tuple[Path, ...], secret_file: Path | None) -> None:
    """Check that audit logs are whole and unchanged. Exit status 0 if so, 1 if not; the first broken line is named.

    The files of one log may come in any order; rotated and packed ones (.gz) are read, too. A log may have lost its
    oldest files, and its end: compare the last line's number and hash with those that you have kept.

    \b
    Example:
        completion-server audit verify audit.jsonl*
    """
    try:
        sealer = Sealer(b"" if secret_file is None else read_secret("--secret-file", secret_file))
    except ConfigError as error:
        click.echo(f"completion-server: {error}", err=True)
        sys.exit(2)
    found = verify(sealer, itertools.chain.from_iterable(map(lines_of, _in_order(files))))
    for place in found.recovered:
        click.echo(f"recovered: {place}: a crash cut the line before, which this one quotes")
    if found.broken:
        click.echo(f"broken: {found.broken}")
        sys.exit(1)
    what = f"lines {found.first} to {found.state.sequence}, last hash {found.state.hash}" if found.first else "empty"
    click.echo(f"intact: {what}")
    if found.first > 1:
        click.echo(f"lines 1 to {found.first - 1} are not in these files: were they removed as too old, or cut?")


def _in_order(files: Iterable[Path]) -> list[Path]:
    """Return files in the order of their first lines. Those without a line come first: they are named as broken."""
    return sorted(files, key=_first_number)


def _first_number(path: Path) -> int:
    first = next(iter(lines_of(path)), None)
    try:
        return 0 if first is None else int(json.loads(first.data)["seq"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
