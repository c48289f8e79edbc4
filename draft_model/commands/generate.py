"""`draft-model generate`."""

from pathlib import Path

import click

from draft_model.commands.common import CONSOLE, FILE, FOLDER, corpus_option, plain_errors
from draft_model.corpus.documents import Side
from draft_model.corpus.store import Corpus
from draft_model.data.generated import save_splits
from draft_model.data.tokenizer import load_encoder
from draft_model.distil.generate import Generation, draw_cursors, generate_splits


@click.command()
@corpus_option
@click.option("--target", type=FOLDER, required=True, help="The target, in the Hugging Face layout.")
@click.option("--out", type=FILE, required=True, help="JSON lines: what the target wrote, with what stands around it.")
@click.option("--prompts", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Of a completion.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.2, show_default=True)
@click.option("--seed", type=int, default=30, show_default=True)
@plain_errors
def generate(
    *, corpus_folder: Path, target: Path, out: Path, prompts: int, max_tokens: int, temperature: float, seed: int
) -> None:
    """Let the target complete cursors of the corpus through vLLM, for a draft to learn from.

    \b
    Example:
      draft-model generate --target target_model/embedded --out work/embedded/generated.jsonl
      draft-model data --tokens 50e6 --generated work/embedded/generated.jsonl --out work/embedded/data-draft
    """
    encoder = load_encoder(target)
    cursors = draw_cursors(Corpus(corpus_folder).texts(Side.TRAIN), encoder, prompts, seed)
    CONSOLE.print(f"{len(cursors):,} cursors; starting vLLM")
    splits = generate_splits(target, encoder, cursors, Generation(max_tokens, temperature, seed))
    save_splits(splits, out)
    click.echo(f"{out}: {len(splits):,} completions")
