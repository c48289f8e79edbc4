"""The commands of `draft-model`, and what they share: options and their types, progress bars."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
SHARE = click.FloatRange(0, 1)
COUNT = click.IntRange(min=1)
WORK = Path("work/embedded")
CONSOLE = Console(stderr=True)
QUIET_S = 2.5
"""Longest silence of long work that writes to a file or a pipe, where no bar moves."""
corpus_option = click.option(
    "--corpus", "corpus_folder", type=FOLDER, default=WORK / "corpus", help="From `draft-model corpus`."
)
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


engine_option = click.option(
    "--engine-options", "engine_options", type=json_object, default="{}", metavar="JSON", show_default=False,
    help="""vLLM's own settings, such as '{"tensor_parallel_size": 4}'.""",
)  # fmt: skip


def show(found: dict[str, Any], *, as_json: bool) -> None:
    """Print figures, a line each, or as one JSON object."""
    lines = (
        f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}" for name, value in found.items()
    )
    click.echo(json.dumps(found) if as_json else "\n".join(lines))


@contextmanager
def counting(name: str, *, has_bar: bool = True) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback that shows `done` of `total`: a bar on a terminal, elsewhere a line every `QUIET_S` seconds.

    Without `has_bar` the work shows a bar of its own on a terminal.
    """
    begun_s, ended = time.monotonic(), threading.Event()
    with Progress(console=CONSOLE, transient=True, disable=not (has_bar and CONSOLE.is_terminal)) as progress:
        task = progress.add_task(name, total=None)

        def tell() -> None:
            while not ended.wait(QUIET_S):
                at = progress.tasks[0]
                count = f"{at.completed:,.0f}" + (f" of {at.total:,.0f}" if at.total else "")
                click.echo(f"{name}: {count}, {time.monotonic() - begun_s:.0f} s", err=True)

        teller = threading.Thread(target=tell, daemon=True)
        if not CONSOLE.is_terminal:
            teller.start()
        try:
            yield lambda done, total: progress.update(task, completed=done, total=total)
        finally:
            ended.set()
            if teller.ident:
                teller.join()
