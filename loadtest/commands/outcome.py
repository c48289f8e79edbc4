"""Parts that the commands share: groups of options, expected errors, the progress line, output and exit statuses."""

import functools
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from loadtest.report.document import Condition, RunDocument, parse_gates
from loadtest.report.page import render_page
from loadtest.report.tables import print_report
from loadtest.targets import Credentials, TargetError, TargetSpec
from loadtest.terminal import wide_console
from loadtest.traffic.scenario import Scenario

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


def grouped(name: str, make: Callable[..., Any], *options: Callable[[Any], Any], prefix: str = "") -> Callable[[C], C]:
    """Give a command options. It gets, as `name`, what `make` returns for their values, whose errors are refused.

    The options are named as the arguments of `make`, after a prefix.
    """
    keys = tuple(inspect.signature(make).parameters)

    def decorate(command: C) -> Any:  # noqa: ANN401
        @functools.wraps(command)
        def with_group(**given: Any) -> None:  # noqa: ANN401
            with refusing():
                found = make(**{key: given.pop(prefix + key, None) for key in keys})
            command(**given, **{name: found})

        return functools.reduce(lambda found, option: option(found), reversed(options), with_group)

    return decorate


@dataclass(frozen=True, slots=True)
class Output:
    """Where a document goes."""

    gates: tuple[Condition, ...]
    out: Path | None
    html: Path | None
    as_json: bool

    def deliver(self, document: RunDocument) -> Exit:
        """Write and print a document; return the exit status."""
        if self.out is not None:
            document.write(self.out)
        if self.html is not None:
            self.html.write_text(render_page(document), encoding="utf-8")
        if self.as_json:
            click.echo(json.dumps(document.as_json(), allow_nan=False))
        else:
            print_report(document, wide_console())
        if document.interrupted:
            return Exit.INTERRUPTED
        if not document.is_valid:
            return Exit.INVALID
        return Exit.WELL if document.is_passed else Exit.GATE_FAILED


def _output(gates: tuple[str, ...], out: Path | None, html: Path | None, *, as_json: bool) -> Output:
    return Output(parse_gates(gates), out, html, as_json)


gate_option = partial(click.option, "--gate", multiple=True, metavar="FIGURE<NUMBER[,...]")
output_options = grouped(
    "output",
    _output,
    gate_option("gates", help="What each target must reach, such as pause_ttft_ms_p95<200. May be repeated."),
    new_file("--out", help="Write the document, for compare, merge and report."),
    new_file("--html", help="Write a page with pictures."),
    click.option("--json", "as_json", is_flag=True, help="Print the document instead of tables."),
)
"""Gives a command the Output `output`."""


def _load(scenario: str, overrides: tuple[str, ...], duration: float | None) -> Scenario:
    return Scenario.load(scenario, overrides).scaled(duration_s=duration)


scenario_options = grouped(
    "scenario",
    _load,
    click.argument("scenario"),
    click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Set one key of the scenario."),
    click.option("--duration", type=float, metavar="SECONDS", help="Instead of the scenario's."),
)
"""Gives a command the Scenario `scenario`."""
workers_option = click.option(
    "--workers", type=click.IntRange(1), help="Processes on this machine.  [default: its cores less one]"
)


def credential_options(name: str = "credentials", prefix: str = "--", whose: str = "the servers'") -> Callable[[C], C]:
    """Give a command the Credentials `name` from options of TLS files and tokens."""

    def make(
        ca: Path | None,
        certificate: Path | None,
        key: Path | None,
        token_file: Path | None,
        token_command: str | None,
        user_tokens: Path | None,
    ) -> Credentials:
        found = Credentials(ca, certificate, key, token_file, token_command, user_tokens)
        try:
            found.check()
        except EndpointError as error:
            raise Refused(f"{prefix}tls-cert and {prefix}tls-key: {error.problem}") from error
        except (TargetError, ServiceError) as error:
            raise Refused(f"{prefix}token-file, {prefix}token-command: {error}") from error
        return found

    texts = {
        "tls-ca": ("ca", f"Encrypt, and check {whose} certificates against this file."),
        "tls-cert": ("certificate", "The user's certificate, if one is needed."),
        "tls-key": ("key", f"The key of {prefix}tls-cert."),
        "token-file": ("token_file", f"The users' token, if one is needed.  [default: {VARIABLE}]"),
    }
    if name == "credentials":
        texts["tokens"] = ("user_tokens", "A token in each line, for one user after another, around.")
    return grouped(
        name,
        make,
        *(
            click.option(f"{prefix}{flag}", f"{name}_{key}", type=FILE, help=text)
            for flag, (key, text) in texts.items()
        ),
        click.option(
            f"{prefix}token-command",
            f"{name}_token_command",
            metavar="COMMAND",
            help="A command that prints the token.",
        ),
        prefix=f"{name}_",
    )


def secured(specs: Iterable[TargetSpec], credentials: Credentials) -> list[TargetSpec]:
    """Return targets with the credentials of the command line.

    Raises Refused for TLS files of a target that is not a server over gRPC, and for a token that would leave this
    machine in plain text.
    """
    found = [replace(spec, credentials=credentials) for spec in specs]
    tokens = credentials.tokens()
    for spec in found:
        if credentials.is_encrypted and not spec.kind.startswith("grpc"):
            msg = f"target {spec.name}: --tls-ca, --tls-cert and --tls-key are for completion servers over gRPC only"
            raise Refused(msg)
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
        done, total = float(progress.num_connected), float(max(1, progress.num_sessions))
        state = f"connected {done:,.0f} of {total:,.0f}"
        if progress.is_running:
            done, total = progress.elapsed_s, turn.scenario.duration_s
            offered, seen, errors = progress.num_intended / done, progress.num_seen / done, progress.num_errors
            state = f"{done:.0f} of {total:g} s  offered {offered:,.0f}/s  seen {seen:,.0f}/s  errors {errors:,}"
        self._bar.update(self._task, description=title, completed=done, total=total, state=state)
        if not self._console.is_terminal and self._said != turn.number:
            self._said = turn.number
            self._console.print(title, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()
