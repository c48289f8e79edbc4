"""The command line: `target-model --help`."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from target_model.errors import QuantiseError
from target_model.quantise import Report, quantise_folder

MIB = 1 << 20


@click.group(context_settings={"max_content_width": 110})
def main() -> None:
    """Make an INT8 copy of a target model.

    \b
    Example:
      target-model quantize --model target_model/embedded --out work/embedded-int8
    """


@main.command()
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
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def quantize(model: Path, out: Path, scheme: str, as_json: bool) -> None:
    """Write an INT8 copy that vLLM loads on CPU and GPU.

    Needs no calibration data. Embeddings, norms and the output head stay as they are, the tokenizer is copied, and the
    folder appears whole or not at all.

    \b
    Example:
      target-model quantize --model target_model/embedded --out work/embedded-int8
    """
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(scheme, total=None)
            report = quantise_folder(model, out, lambda done, total: progress.update(task, completed=done, total=total))
    except QuantiseError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(asdict(report)) if as_json else describe(report, out))


def describe(report: Report, out: Path) -> str:
    """The report in a few lines."""
    return (
        f"{out}: {report.num_quantised} matrices in int8, {report.num_kept} tensors kept\n"
        f"{report.bytes_before / MIB:.1f} -> {report.bytes_after / MIB:.1f} MiB, "
        f"largest relative error of a matrix {report.worst_relative_error:.2%}"
    )


if __name__ == "__main__":
    main()
