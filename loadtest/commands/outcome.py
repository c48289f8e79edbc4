"""Parts that the commands which produce a run's document share: output options and exit codes."""

import json
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console

from loadtest.report.document import RunDocument
from loadtest.report.page import render_page
from loadtest.report.terminal import print_report

P = ParamSpec("P")
R = TypeVar("R")


class _NewFile(click.Path):
    """A file to write after the run. Its folder is checked before."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the path; fail if its folder does not exist."""
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no folder {path.parent}", param, ctx)
        return path


NEW_FILE = _NewFile(dir_okay=False, writable=True, path_type=Path)


class Exit(IntEnum):
    """Exit statuses of the commands."""

    WELL = 0
    GATE_FAILED = 1
    """A gate was not met, or too many requests failed (see MAX_ERROR_RATE)."""
    REFUSED = 2
    """Bad input; nothing was sent."""
    INVALID = 3
    """The run is invalid: the generator was late, or a worker is missing."""
    INTERRUPTED = 130


class Refused(click.ClickException):
    """Bad input; the message names the error."""

    exit_code = Exit.REFUSED


def output_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options `gates`, `out`, `html` and `as_json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the document instead of tables."),
        click.option("--html", type=NEW_FILE, help="Write a page with pictures."),
        click.option("--out", type=NEW_FILE, help="Write the document, for compare, merge and report."),
        click.option(
            "--gate",
            "gates",
            multiple=True,
            metavar="FIGURE<NUMBER[,...]",
            help="What each target must reach, such as pause_ttft_ms_p95<200. May be repeated.",
        ),
    ):
        command = option(command)
    return command


def deliver(document: RunDocument, out: Path | None, html: Path | None, *, as_json: bool) -> Exit:
    """Write and print a document; return the exit code."""
    if out is not None:
        document.write(out)
    if html is not None:
        html.write_text(render_page(document), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(document.as_json(), allow_nan=False))
    else:
        print_report(document, Console())
    return exit_code(document)


def exit_code(document: RunDocument) -> Exit:
    """Return the exit status of a document."""
    if document.interrupted:
        return Exit.INTERRUPTED
    if not document.is_valid:
        return Exit.INVALID
    return Exit.WELL if document.is_passed else Exit.GATE_FAILED
