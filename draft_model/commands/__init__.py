"""The commands of `draft-model`, and what they share: options and their types, progress bars."""

import itertools
import json
import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
WORK = Path("work/embedded")
CONSOLE = Console(stderr=True)
TENTHS = 10
corpus_option = click.option(
    "--corpus", "corpus_folder", type=FOLDER, default=WORK / "corpus",
    help="Corpus folder, from `draft-model corpus`.",
)  # fmt: skip
model_option = click.option("--model", type=FOLDER, required=True, help="Model folder in the Hugging Face layout.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def number(value: Any) -> int:  # noqa: ANN401 - a default is a number, an argument a text
    """A count of at least one that may be written as 50e9: the type of an option."""
    try:
        meant = int(float(value))
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is not a number") from None
    if meant < 1:
        raise click.BadParameter(f"{value!r} is less than 1")
    return meant


def json_object(value: str) -> dict[str, Any]:
    """A JSON object: the type of an option."""
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise click.BadParameter(f"{value!r} is not a JSON object")
    return parsed


def _check_compiler(_context: click.Context, _parameter: click.Parameter, is_compiled: bool) -> bool:
    """Raise UsageError, before hours of other work, when torch.compile lacks a compiler or Python's headers."""
    if is_compiled and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise click.UsageError("torch.compile finds no C++ compiler: install g++, set CXX, or give --no-compile")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if is_compiled and not header.is_file():
        raise click.UsageError(f"torch.compile needs {header}: install python3-dev, or give --no-compile")
    return is_compiled


engine_option = click.option(
    "--engine-options", "engine_options", type=json_object, default="{}", metavar="JSON", show_default=False,
    help="""vLLM's own settings, such as '{"tensor_parallel_size": 4}'.""",
)  # fmt: skip
compile_option = click.option(
    "--compile/--no-compile", "is_compiled", default=True, callback=_check_compiler,
    help="Let torch.compile make code for the model: half a minute of the first steps, the others are faster.",
)  # fmt: skip


def refuse_without(needed: str, *names: str) -> None:
    """Raise UsageError when one of these options was given without the option `needed`."""
    context = click.get_current_context()
    for name in names:
        if context.params[needed] is None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --{needed}")


def show(found: dict[str, Any], *, as_json: bool) -> None:
    """Print figures, a line each, or as one JSON object."""
    lines = (
        f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}" for name, value in found.items()
    )
    click.echo(json.dumps(found) if as_json else "\n".join(lines))


def counting(progress: Progress, name: str) -> Callable[[int, int], None]:
    """A callback that moves a progress bar; without a terminal it prints a line at every tenth."""
    task = progress.add_task(name, total=None)
    shown = 0

    def on_done(done: int, total: int) -> None:
        nonlocal shown
        progress.update(task, completed=done, total=total)
        tenths = done * TENTHS // max(1, total)
        if not progress.console.is_terminal and tenths > shown:
            shown = tenths
            progress.console.print(f"{name}: {done:,} of {total:,}")

    return on_done


def stepping(progress: Progress, name: str, total: int) -> Callable[[], None]:
    """A callback that moves a progress bar by one of `total` steps."""
    on_done, steps = counting(progress, name), itertools.count(1)
    on_done(0, total)
    return lambda: on_done(next(steps), total)
