"""The command line: `target-model --help`."""

import json
import os
import signal
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from completion_server.core.files import cache_folder

try:
    from target_model.calibrate import ENVIRONMENT, Calibration, quantise_calibrated
    from target_model.core import check_writable, telling, write_atomically
    from target_model.measure import Material, ServedModel, TargetFigures, measure_all, render, serving, to_json
    from target_model.prepare import prepare
    from target_model.quantise import Report, quantise_folder
    from target_model.sandbox import CheckedProgram, Limits, run_program
    from target_model.tasks import read_tasks, read_texts
except ModuleNotFoundError as error:
    raise SystemExit(f"target-model needs the package {error.name}: install the extra train") from None

MIB = 1 << 20
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
T = TypeVar("T")


@click.command()
@click.option("--model", type=FOLDER, required=True, help="Model folder in the Hugging Face layout.")
@click.option("--out", type=FOLDER, required=True, help="New folder for the INT8 copy.")
@click.option(
    "--calibration", type=FILE, metavar="DATA",
    help="Code to calibrate on: Parquet or JSON lines with a column text. Needs `make calibration`.",
)  # fmt: skip
@click.option("--samples", type=COUNT, default=Calibration.num_samples, help="Texts of DATA to use, spread evenly.")
@click.option(
    "--smoothing", type=click.FloatRange(0, 1), default=Calibration.smoothing,
    help="SmoothQuant's strength; 0: GPTQ alone.",
)  # fmt: skip
@click.option(
    "--calibration-python", type=FILE, default=ENVIRONMENT, metavar="PYTHON", show_default=False,
    help="Interpreter of another environment with llmcompressor, such as one for CUDA.",
)  # fmt: skip
@click.option("--with-head", is_flag=True, help="Round the output head, too: a third of what a small model reads.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def quantize(
    *, model: Path, out: Path, calibration: Path | None, samples: int, smoothing: float, calibration_python: Path,
    with_head: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write an INT8 copy that vLLM loads on CPU and GPU.

    Weights are int8 per output channel, activations int8 per token. Needs no data. With --calibration, SmoothQuant and
    GPTQ choose the rounding that changes the model's outputs on the data least. Embeddings are kept, and without
    --with-head the output head; tokenizer and card are copied. The folder appears whole or not at all.

    \b
    Example:
      target-model quantize --model target_model/embedded-bf16 --out work/embedded-int8
      draft-model corpus --out work/embedded/corpus    # code to calibrate on
      target-model quantize --model target_model/embedded-bf16 --out work/embedded-calibrated \\
          --calibration work/embedded/corpus/train-00000.parquet
    """
    source_of = click.get_current_context().get_parameter_source
    for name in () if calibration else ("samples", "smoothing", "calibration_python"):
        if source_of(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --calibration")
    if calibration is not None and with_head:
        raise click.UsageError("--with-head has no effect with --calibration")
    if calibration is None:
        with telling(lambda: "rounding to int8"):
            report = quantise_folder(model, out, with_head=with_head)
    else:
        how = Calibration(read_texts(calibration), samples, smoothing, calibration_python)
        click.echo("calibrating; llmcompressor says how far it is", err=True)
        report = quantise_calibrated(model, out, how)
    click.echo(json.dumps(asdict(report)) if as_json else describe(report, out))


def describe(report: Report, out: Path) -> str:
    """Describe the report in a few lines."""
    worst = report.worst_relative_error
    error = "" if worst is None else f", largest relative error of a matrix {worst:.2%}"
    return (
        f"{out}: {report.num_quantised} matrices in int8, {report.num_kept} tensors kept\n"
        f"{report.bytes_before / MIB:.1f} -> {report.bytes_after / MIB:.1f} MiB{error}"
    )


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
@click.option("--humaneval", type=FILE, help="HumanEval.jsonl.gz, for pass@1.")
@click.option("--single-line", type=FILE, help="HumanEval-SingleLineInfilling.jsonl.gz.")
@click.option("--held-out", type=FILE, help="Held-out code, Parquet or JSON lines with a column text.")
@click.option("--max-tasks", type=COUNT, help="Of each set, spread evenly.  [default: all]")
@click.option("--max-texts", type=COUNT, default=100, help="For the loss.")
@click.option("--out", type=FILE, help="Also write the figures there as JSON, after each model.")
@click.option(
    "--engine-options", default="{}", callback=_object, metavar="JSON", show_default=False,
    help="""vLLM's own settings, such as '{"tensor_parallel_size": 4}'.""",
)  # fmt: skip
@click.option(
    "--allow-weak-sandbox", is_flag=True,
    help="Run programs without bubblewrap too: only on a machine that holds nothing else.",
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

        def serve(model: Path) -> AbstractContextManager[ServedModel]:
            click.echo(f"measuring {model}", err=True)
            return serving(model, engine_options)

        for figures in measure_all([named_model(text) for text in models], material, serve, limits):
            found.append(figures)
            if out is not None:
                write_atomically(out, to_json(found))
    finally:
        # Also after an error or a signal during a later model.
        if found:
            click.echo(to_json(found) if as_json else render(found))


def named_model(text: str) -> tuple[str, Path]:
    """Parse NAME=DIR or DIR; the default name is the folder's."""
    name, found, folder = text.partition("=")
    return (name, Path(folder)) if found else (Path(text).name, Path(text))


def spread(all_of_them: list[T], most: int | None) -> list[T]:
    """At most `most` of the items, spread evenly."""
    if most is None or most >= len(all_of_them):
        return all_of_them
    return [all_of_them[number * len(all_of_them) // most] for number in range(most)]


@click.command("prepare")
@click.argument("model")
@click.option("--cache", type=FOLDER, help="Folder for what is made.  [default: that of the user's caches]")
def prepare_command(model: str, cache: Path | None) -> None:
    """Fetch or convert MODEL for this machine, and print its folder: the first step of `make serve MODEL=...`.

    MODEL is a folder, a GGUF file, which is converted once, or an id on the hub, which is downloaded once. On a CPU
    that is faster in INT8, which is measured, an INT8 copy is made once. Says before each step how much memory and disk
    it needs.

    \b
    Example:
      completion-server serve --config deploy/local/model.toml \\
          --set engine.model=$(target-model prepare Qwen/Qwen2.5-Coder-0.5B)
    """
    folder = cache or cache_folder(os.environ)
    if folder is None:
        raise click.UsageError("--cache: must be set, because HOME is not")
    prepared = prepare(model, cache or folder / "models", lambda text: click.echo(text, err=True))
    click.echo(prepared.about, err=True)
    click.echo(prepared.folder)


@click.group(context_settings={"max_content_width": 110, "show_default": True})
def main() -> None:
    """Make an INT8 copy of a target model, and measure its quality and speed.

    \b
    Example:
      target-model quantize --model target_model/embedded-bf16 --out work/embedded-int8
      target-model evaluate --model bf16=target_model/embedded-bf16 --model int8=target_model/embedded
    """
    signal.signal(signal.SIGTERM, _leave)


def _leave(_signal: int, _frame: object) -> None:
    """Leave by an exception, so that unfinished files are removed."""
    sys.exit(128 + signal.SIGTERM)


for command in (prepare_command, quantize, evaluate):
    main.add_command(command)


if __name__ == "__main__":
    main()
