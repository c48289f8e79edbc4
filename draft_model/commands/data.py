"""`draft-model data`."""

from pathlib import Path

import click
from rich.progress import Progress

from draft_model.commands.common import (
    CONSOLE,
    FILE,
    FOLDER,
    WORK,
    Number,
    corpus_option,
    counting,
    plain_errors,
    refuse_without,
)
from draft_model.corpus.documents import Side
from draft_model.corpus.store import Corpus
from draft_model.data.samples import FIM_SHARE, GENERATED_SHARE, SNIPPET_SHARE
from draft_model.data.shards import DataSettings, build_data
from draft_model.data.tokenizer import load_encoder

BYTES_A_TOKEN = 3.5
"""Estimate for code; gives the number of passes over the corpus."""


def row_lengths(text: str) -> tuple[int, ...]:
    """Parse lengths such as "1024,256"; UsageError for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.UsageError(f"--row-tokens: {text!r} is not a list of numbers") from None


@click.command()
@corpus_option
@click.option(
    "--tokenizer", type=FOLDER, default=WORK / "tokenizer", show_default=True,
    help="Folder of a tokenizer, and of its template; a draft uses those of its target.",
)  # fmt: skip
@click.option("--out", type=FOLDER, default=WORK / "data", show_default=True)
@click.option(
    "--tokens", type=Number(), required=True, help="Training tokens, such as 50e9, rounded up to whole shards."
)
@click.option("--row-tokens", default="1024,256,512,256", show_default=True, help="Lengths of rows, in turn.")
@click.option(
    "--block-tokens", type=click.IntRange(min=1), default=2_048, show_default=True, help="Computed at a time."
)
@click.option("--blocks-per-shard", type=click.IntRange(min=1), default=1_024, show_default=True)
@click.option("--fim-share", type=click.FloatRange(0, 1), default=FIM_SHARE, show_default=True)
@click.option(
    "--snippet-share", type=click.FloatRange(0, 1), default=SNIPPET_SHARE, show_default=True,
    help="Share of the fill-in-the-middle samples with pieces of other files in front.",
)  # fmt: skip
@click.option("--generated", type=FILE, default=None, help="File of completions, from `draft-model generate`.")
@click.option(
    "--generated-share", type=click.FloatRange(0, 1), default=GENERATED_SHARE, show_default=True,
    help="Share of generated samples, if there is a file of them.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", type=int, default=20, show_default=True)
@plain_errors
def data(
    *, corpus_folder: Path, tokenizer: Path, out: Path, tokens: int, row_tokens: str, block_tokens: int,
    blocks_per_shard: int, fim_share: float, snippet_share: float, generated: Path | None,
    generated_share: float, workers: int, seed: int,
) -> None:  # fmt: skip
    """Cut a corpus into rows of tokens in the template that the server uses.

    After an interruption the same command continues.

    \b
    Examples:
      draft-model data --tokens 100e6
      draft-model data --corpus corpus --tokenizer codellama-13b --out data --tokens 50e9 --row-tokens 4096 \\
          --block-tokens 16384 --workers 32
    """
    refuse_without("generated", "generated_share")
    try:
        settings = DataSettings(
            tokens, block_tokens, row_lengths(row_tokens), blocks_per_shard, fim_share,
            generated_share if generated else 0.0, seed, snippet_share,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    template, code = load_encoder(tokenizer).template, Corpus(corpus_folder)
    with Progress(console=CONSOLE, transient=True) as progress:
        build_data(
            code, tokenizer, template, out, settings, generated=generated, num_workers=workers,
            on_shard=counting(progress, "shards"),
        )  # fmt: skip
    made = settings.num_shards * settings.blocks_a_shard * settings.block_tokens
    passes = made * BYTES_A_TOKEN / max(1, code.manifest.num_bytes(Side.TRAIN))
    size = f"{settings.num_shards} shards, {made / 1e6:,.1f}M tokens"
    click.echo(f"{out}: {size}, about {passes:.2g} times the corpus, template {template.name}")
