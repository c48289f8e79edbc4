"""What training `draft-1b` and decoding with a 13B INT8 target cost on one GPU; no weights or data are needed.

    make ENGINE=cuda .venv-cuda/installed
    .venv-cuda/bin/python -m draft_model.gpu

One GPU of 80 GB, about a quarter of an hour. Every part runs in a process of its own and finds the GPU empty. The last
line is one JSON object:

    train: tokens_per_s and mfu (median behind the first steps), peak_memory_mib (the whole device's)
    target, draft: parameters in the matrices, weights_mib as stored, step_ms by batch size, and their ratio at each;
        null for a batch that is left out, as vLLM's KV cache cannot hold it (why is on standard error)

`--tiny` goes the same way in small shapes on any machine.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from draft_model.gpu.decoding import measure_steps, step_ratios, time_steps
from draft_model.gpu.processes import device_name
from draft_model.gpu.sizes import FULL, TINY
from draft_model.gpu.training import measure_training


@click.command(context_settings={"max_content_width": 110})
@click.option("--tiny", is_flag=True, help="Small shapes and a few steps, to try the program itself.")
@click.option("--train-minutes", type=float, default=None, help="Of training.  [default: 3]")
@click.option(
    "--block-tokens",
    type=int,
    default=None,
    help="Computed at a time in training; smaller where memory runs out.  [default: 16384]",
)
@click.option("--only", type=click.Choice(["train", "decode"]), default=None, help="One half.  [default: both]")
@click.option("--step", "model", type=click.Path(path_type=Path), default=None, hidden=True)
def main(
    *, tiny: bool, train_minutes: float | None, block_tokens: int | None, only: str | None, model: Path | None
) -> None:
    """Measure on one GPU: training draft-1b, and the decode steps of a 13B INT8 target and of the draft."""
    sizes = TINY if tiny else FULL
    if model is not None:
        click.echo(json.dumps(time_steps(model, sizes)))
        return
    if train_minutes is not None:
        sizes = replace(sizes, train_minutes=train_minutes)
    if block_tokens is not None:
        sizes = replace(sizes, block_tokens=block_tokens)
    figures: dict[str, Any] = {"device": device_name(), "tiny": tiny}
    with tempfile.TemporaryDirectory(prefix="measure-") as folder:
        if only != "decode":
            figures["train"] = measure_training(sizes, Path(folder))
        if only != "train":
            for name, shape, is_int8 in (("target", sizes.target, True), ("draft", sizes.draft, False)):
                figures[name] = measure_steps(name, shape, is_int8=is_int8, tiny=tiny, folder=Path(folder) / name)
            figures["draft_to_target"] = step_ratios(figures["draft"]["step_ms"], figures["target"]["step_ms"])
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
