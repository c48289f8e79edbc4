"""Parts that the commands share: options, expected errors, the progress line, output and exit statuses."""

import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from completion_client import EndpointError, ServiceError
from completion_client.token_sources import VARIABLE
from loadtest import LoadTestError
from loadtest.driving.run import RunProgress
from loadtest.report.document import RunDocument
from loadtest.report.page import render_page
from loadtest.report.tables import print_report
from loadtest.targets import Credentials, TargetSpec

C = TypeVar("C", bound=Callable[..., Any])

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _in_folder(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """Check the folder of a file that is written after the run."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}")
    return path


new_file = partial(click.option, type=click.Path(dir_okay=False, writable=True, path_type=Path), callback=_in_folder)
"""Gives a command an option for a file to write after the run; its folder is checked before."""


class Exit(IntEnum):
    """Exit statuses of the commands."""

    WELL = 0
    GATE_FAILED = 1
    """A gate was not met, or too many requests failed (see MAX_ERROR_RATE)."""
    REFUSED = 2
    """Bad input; nothing was sent."""
    INVALID = 3
    """The run is invalid: the generator was late, a worker is missing, or a tuning's answers came from a cache."""
    INTERRUPTED = 130


class Refused(click.ClickException):
    """Bad input; the message names the error."""

    exit_code = Exit.REFUSED


@contextmanager
def refusing(interrupted: str = "") -> Iterator[None]:
    """Turn expected errors into Refused, and Ctrl-C into its exit status, after the line `interrupted` if given."""
    try:
        yield
    except LoadTestError as error:
        raise Refused(str(error)) from error
    except KeyboardInterrupt:
        if interrupted:
            click.echo(interrupted, err=True)
        sys.exit(Exit.INTERRUPTED)


def _with_options(*options: Callable[[Any], Any]) -> Callable[[C], C]:
    return lambda command: functools.reduce(lambda found, option: option(found), reversed(options), command)


output_options = _with_options(
    click.option(
        "--gate",
        "gates",
        multiple=True,
        metavar="FIGURE<NUMBER[,...]",
        help="What each target must reach, such as pause_ttft_ms_p95<200. May be repeated.",
    ),
    new_file("--out", help="Write the document, for compare, merge and report."),
    new_file("--html", help="Write a page with pictures."),
    click.option("--json", "as_json", is_flag=True, help="Print the document instead of tables."),
)
"""Gives a command the options `gates`, `out`, `html` and `as_json`."""

scenario_options = _with_options(
    click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Set one key of the scenario."),
    click.option("--duration", type=float, metavar="SECONDS", help="Of each run, instead of the scenario's."),
    click.option("--workers", type=click.IntRange(1), help="Processes on this machine.  [default: its cores less one]"),
)
"""Gives a command the options `overrides`, `duration` and `workers`."""


def credential_options(command: Callable[..., None], listener: str = "") -> Callable[..., None]:
    """Add the options of TLS files and tokens; the command gets them as `credentials`, or `LISTENER_credentials`."""
    prefix, whose = (f"--{listener}-", f"the {listener} listener's") if listener else ("--", "the servers'")
    start = f"{listener}_" if listener else ""
    fields = ("tls_ca", "tls_cert", "tls_key", "token_file", "token_command", *(() if listener else ("tokens",)))

    @functools.wraps(command)
    def with_files(**options: Any) -> None:  # noqa: ANN401
        found = Credentials(*(options.pop(f"{start}{each}") for each in fields))
        try:
            _check_credentials(found)
        except EndpointError as error:
            raise Refused(f"{prefix}tls-cert and {prefix}tls-key: {error.problem}") from error
        except LoadTestError as error:
            raise Refused(f"{prefix}token-file, {prefix}token-command: {error}") from error
        command(**options, **{f"{start}credentials": found})

    many = click.option("--tokens", type=FILE, help="A token in each line, for one user after another, around.")
    return _with_options(
        click.option(f"{prefix}tls-ca", type=FILE, help=f"Encrypt, and check {whose} certificates against this file."),
        click.option(f"{prefix}tls-cert", type=FILE, help="The user's certificate, if one is needed."),
        click.option(f"{prefix}tls-key", type=FILE, help=f"The key of {prefix}tls-cert."),
        click.option(
            f"{prefix}token-file", type=FILE, help=f"The users' token, if one is needed.  [default: {VARIABLE}]"
        ),
        click.option(f"{prefix}token-command", metavar="COMMAND", help="A command that prints the token."),
        *(() if listener else (many,)),
    )(with_files)


def _check_credentials(credentials: Credentials) -> None:
    """Raise EndpointError for PEM files that can't be used, LoadTestError for tokens that can't."""
    credentials.endpoint("127.0.0.1:1").open_channel().close()
    if sum(map(bool, (credentials.token_file, credentials.token_command, credentials.user_tokens))) > 1:
        raise LoadTestError("give one of them")
    try:
        for token in credentials.tokens():
            token.get_blocking()
    except ServiceError as error:
        raise LoadTestError(error.message) from error


def secured(specs: Iterable[TargetSpec], credentials: Credentials) -> list[TargetSpec]:
    """Return targets with the credentials of the command line.

    Raises Refused for TLS files of a target that is not a server over gRPC, and for a token that would leave this
    machine in plain text.
    """
    found = [replace(spec, credentials=credentials) for spec in specs]
    tokens = credentials.tokens()
    for spec in found:
        if credentials.is_encrypted and not spec.kind.startswith("grpc"):
            raise Refused(
                f"target {spec.name}: --tls-ca, --tls-cert and --tls-key are for completion servers over gRPC only"
            )
        try:
            for endpoint, token in itertools.product(spec.endpoints, tokens[:1]):
                endpoint.check_token(token)
        except EndpointError as error:
            raise Refused(f"target {spec.name}: {error.problem}") from error
    return found


class Live:
    """The progress line of a run. Without a terminal, one line is printed for each target's turn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[state]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=1.0, state="starting workers")
        self._said = -1

    def show(self, progress: RunProgress) -> None:
        """Show the progress."""
        turn = progress.turn
        title = f"{turn.spec.name} ({turn.number + 1} of {turn.num_turns})" if turn.num_turns > 1 else turn.spec.name
        done = progress.elapsed_s if progress.is_running else progress.num_connected
        total = turn.scenario.duration_s if progress.is_running else max(1, progress.num_sessions)
        self._bar.update(self._task, description=title, completed=done, total=total, state=describe(progress))
        if not self._console.is_terminal and self._said != turn.number:
            self._said = turn.number
            self._console.print(title, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()


def describe(progress: RunProgress) -> str:
    """Return the figures in the progress line."""
    if not progress.is_running:
        return f"connected {progress.num_connected:,} of {progress.num_sessions:,}"
    seconds = max(progress.elapsed_s, 1e-3)
    return (
        f"{progress.elapsed_s:.0f} of {progress.turn.scenario.duration_s:g} s  "
        f"offered {progress.num_intended / seconds:,.0f}/s  seen {progress.num_seen / seconds:,.0f}/s  "
        f"errors {progress.num_errors:,}"
    )


def deliver(document: RunDocument, out: Path | None, html: Path | None, *, as_json: bool) -> Exit:
    """Write and print a document; return the exit status."""
    if out is not None:
        document.write(out)
    if html is not None:
        html.write_text(render_page(document), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(document.as_json(), allow_nan=False))
    else:
        print_report(document, Console())
    if document.interrupted:
        return Exit.INTERRUPTED
    if not document.is_valid:
        return Exit.INVALID
    return Exit.WELL if document.is_passed else Exit.GATE_FAILED
