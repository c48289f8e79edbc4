"""`target-model evaluate`."""

import json
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from target_model.core.errors import TargetError
from target_model.core.files import check_writable, write_atomically
from target_model.evaluation.figures import TargetFigures, render, to_json
from target_model.evaluation.measure import Material, measure_all
from target_model.evaluation.served import serving
from target_model.evaluation.tasks import read_tasks
from target_model.evaluation.texts import read_texts
from target_model.sandbox.runner import CheckedProgram, Limits, run_program

T = TypeVar("T")
MAX_TEXTS = 100
FILE = click.Path(path_type=Path, dir_okay=False)


def _object(_context: click.Context, _parameter: click.Parameter, value: str) -> dict[str, Any]:
    """Parse an option that is a JSON object."""
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise click.BadParameter(f"{value!r} is not a JSON object")
    return parsed


@click.command()
@click.option(
    "--model", "models", multiple=True, required=True, metavar="[NAME=]DIR", help="One or more, side by side."
)
@click.option("--humaneval", type=FILE, default=None, help="HumanEval.jsonl.gz, for pass@1.")
@click.option("--single-line", type=FILE, default=None, help="HumanEval-SingleLineInfilling.jsonl.gz.")
@click.option("--held-out", type=FILE, default=None, help="Held-out code, Parquet or JSON lines with a column text.")
@click.option(
    "--max-tasks", type=click.IntRange(min=1), default=None, help="Of each set, spread evenly.  [default: all]"
)
@click.option("--max-texts", type=click.IntRange(min=1), default=MAX_TEXTS, show_default=True, help="For the loss.")
@click.option("--out", type=FILE, default=None, help="Also write the figures there as JSON, after each model.")
@click.option(
    "--engine-options", default="{}", callback=_object, metavar="JSON",
    help="""vLLM's own settings, such as '{"tensor_parallel_size": 4}'.""",
)  # fmt: skip
@click.option(
    "--allow-weak-sandbox", is_flag=True,
    help="Run programs on a kernel without namespaces or Landlock too: only on a machine that holds nothing else.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    *, models: tuple[str, ...], humaneval: Path | None, single_line: Path | None, held_out: Path | None,
    max_tasks: int | None, max_texts: int, out: Path | None, engine_options: dict[str, Any],
    allow_weak_sandbox: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure quality, speed and memory of models in vLLM, to compare INT8 with bfloat16.

    Programs that the models write run in processes of their own, with limits, without network and apart from the check.
    If the kernel can't confine them, nothing runs. Run the command in a container.

    \b
    Example:
      target-model evaluate --model bf16=target_model/embedded-bf16 --model int8=target_model/embedded \\
          --single-line target_model/benchmarks/HumanEval-SingleLineInfilling.jsonl.gz \\
          --held-out draft_model/held_out/held_out-00000.parquet
    """
    found: list[TargetFigures] = []
    try:
        if out is not None:
            check_writable(out)  # Before the hours of measuring.
        material = Material(
            spread(read_tasks(humaneval), max_tasks) if humaneval else (),
            spread(read_tasks(single_line), max_tasks) if single_line else (),
            spread(read_texts(held_out), max_texts) if held_out else (),
        )
        limits = Limits(allow_weak=allow_weak_sandbox)
        if material.functions or material.lines:
            run_program(CheckedProgram(""), limits)  # Reports missing kernel features before hours of measuring.
        named = [named_model(text) for text in models]
        serve = partial(serving, options=engine_options)
        for figures in measure_all(named, material, _say_begin, serve, limits):
            found.append(figures)
            if out is not None:
                write_atomically(out, to_json(found))
    except TargetError as error:
        raise click.ClickException(str(error)) from error
    finally:
        # Also after an error or a signal during a later model.
        if found:
            click.echo(to_json(found) if as_json else render(found))


def _say_begin(name: str) -> None:
    click.echo(f"measuring {name} ...", err=True)


def named_model(text: str) -> tuple[str, Path]:
    """Parse NAME=DIR or DIR; the default name is the folder's."""
    name, found, folder = text.partition("=")
    return (name, Path(folder)) if found else (Path(text).name, Path(text))


def spread(all_of_them: list[T], most: int | None) -> list[T]:
    """At most `most` of the items, spread evenly."""
    if most is None or most >= len(all_of_them):
        return all_of_them
    return [all_of_them[number * len(all_of_them) // most] for number in range(most)]
