"""`target-model quantize`."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress, TaskID

from target_model.core.errors import TargetError
from target_model.evaluation.texts import read_texts
from target_model.quantisation.calibrate import ENVIRONMENT, Calibration, quantise_calibrated
from target_model.quantisation.quantise import Report, quantise_folder

MIB = 1 << 20
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option(
    "--model", type=click.Path(path_type=Path), required=True, help="Model folder in the Hugging Face layout."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for the INT8 copy.")
@click.option(
    "--scheme",
    type=click.Choice(["w8a8"]),
    default="w8a8",
    show_default=True,
    help="w8a8: weights int8 per output channel, activations int8 per token.",
)
@click.option(
    "--calibration",
    type=FILE,
    default=None,
    metavar="DATA",
    help="Code to calibrate on: Parquet or JSON lines with a column text. Needs `make calibration`.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=Calibration.num_samples,
    show_default=True,
    help="Texts of DATA that are used, spread evenly.",
)
@click.option(
    "--smoothing",
    type=click.FloatRange(0, 1),
    default=Calibration.smoothing,
    show_default=True,
    help="SmoothQuant's strength; 0: GPTQ alone.",
)
@click.option(
    "--calibration-python",
    type=FILE,
    default=ENVIRONMENT,
    metavar="PYTHON",
    help="Interpreter of another environment with llmcompressor, such as one for CUDA.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def quantize(
    *,
    model: Path,
    out: Path,
    scheme: str,
    calibration: Path | None,
    samples: int,
    smoothing: float,
    calibration_python: Path,
    as_json: bool,
) -> None:
    """Write an INT8 copy that vLLM loads on CPU and GPU.

    Needs no data. With --calibration, SmoothQuant and GPTQ choose the rounding that changes the model's outputs on the
    data least. Embeddings and the output head are kept, tokenizer and card are copied, and the folder appears whole or
    not at all.

    \b
    Example:
      target-model quantize --model target_model/embedded-bf16 --out work/embedded-int8
      draft-model corpus --out work/embedded/corpus    # code to calibrate on
      target-model quantize --model target_model/embedded-bf16 --out work/embedded-calibrated \\
          --calibration work/embedded/corpus/train-00000.parquet
    """
    context = click.get_current_context()
    for name in () if calibration else ("samples", "smoothing", "calibration_python"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --calibration")
    warnings: list[str] = []
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(scheme, total=None)
            update = partial(_update, progress, task)
            if calibration is None:
                report = quantise_folder(model, out, update)
            else:
                how = Calibration(read_texts(calibration), samples, smoothing, calibration_python)
                report, warnings = quantise_calibrated(model, out, how, update)
    except TargetError as error:
        raise click.ClickException(str(error)) from error
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(json.dumps(asdict(report)) if as_json else describe(report, out))


def _update(progress: Progress, task: TaskID, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)


def describe(report: Report, out: Path) -> str:
    """Describe the report in a few lines."""
    worst = report.worst_relative_error
    return (
        f"{out}: {report.num_quantised} matrices in int8, {report.num_kept} tensors kept\n"
        f"{report.bytes_before / MIB:.1f} -> {report.bytes_after / MIB:.1f} MiB"
        + ("" if worst is None else f", largest relative error of a matrix {worst:.2%}")
    )
