"""`draft-model generate`."""

from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from draft_model.commands.common import (
    CONSOLE,
    FILE,
    FOLDER,
    corpus_option,
    counting,
    engine_option,
    plain_errors,
)
from draft_model.corpus.store import Corpus
from draft_model.data.tokenizer import load_encoder
from draft_model.distil.generate import GenerationSettings, draw_cursors
from draft_model.distil.generate import generate as write_generated


@click.command()
@corpus_option
@click.option("--target", type=FOLDER, required=True, help="The target, in the Hugging Face layout.")
@click.option("--out", type=FILE, required=True, help="JSON lines: the target's completions with the text around them.")
@click.option("--prompts", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--max-tokens", type=click.IntRange(min=1), default=48, show_default=True, help="Of a completion.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--seed", type=int, default=30, show_default=True)
@engine_option
@plain_errors
def generate(
    *, corpus_folder: Path, target: Path, out: Path, prompts: int, max_tokens: int, temperature: float, seed: int,
    engine_options: dict[str, Any],
) -> None:  # fmt: skip
    """Let the target complete cursors of the corpus through vLLM, for a draft to learn from.

    After an interruption the same command continues.

    \b
    Example:
      draft-model generate --target target_model/embedded --out work/embedded/generated.jsonl
      draft-model data --tokens 50e6 --generated work/embedded/generated.jsonl --out work/embedded/data-draft
    """
    encoder = load_encoder(target)
    cursors = draw_cursors(Corpus(corpus_folder), encoder, prompts, seed)
    generation = GenerationSettings(max_tokens, temperature, seed)
    CONSOLE.print(f"{len(cursors):,} cursors")
    with Progress(console=CONSOLE, transient=True) as progress:
        on_done = counting(progress, "vLLM, thousands of cursors")
        written = write_generated(
            target, encoder, cursors, generation, out, options=engine_options, on_done=on_done
        )  # fmt: skip
    click.echo(f"{out}: {written:,} completions")
