"""The commands that make what models learn from: `corpus`, `tokenizer`, `data` and `generate`."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from draft_model.commands import (
    CONSOLE,
    FILE,
    FOLDER,
    WORK,
    corpus_option,
    counting,
    engine_option,
    number,
    refuse_without,
)
from draft_model.core import VOCAB_SIZE
from draft_model.corpus.collect import HELD_OUT_PERCENT, CorpusSettings, collect_corpus
from draft_model.corpus.filters import DEFAULT_SUFFIXES, Rules
from draft_model.corpus.readers import (
    HELD_OUT,
    fetch_wheels,
    read_archive,
    read_embedded_sources,
    read_folder,
    read_hugging_face,
    read_jsonl,
    read_parquet,
    read_repositories,
)
from draft_model.corpus.store import Corpus, Document, Side
from draft_model.data.samples import FIM_SHARE, GENERATED_SHARE, SNIPPET_SHARE
from draft_model.data.shards import DataSettings, build_data
from draft_model.data.tokenizer import load_encoder, write_tokenizer
from draft_model.distil import GenerationSettings, draw_cursors
from draft_model.distil import generate as write_generated

Paths = tuple[Path, ...]
BYTES_A_TOKEN = 3.5
"""Estimate for code; gives the number of passes over the corpus."""


@click.command()
@click.option(
    "--out",
    type=FOLDER,
    default=WORK / "corpus",
    help="Folder for the corpus; one that is there is replaced, anything else is not.",
)
@click.option("--folder", type=FOLDER, multiple=True, help="Code of your own, one repository; a licence in it counts.")
@click.option("--repositories", type=FOLDER, multiple=True, help="A folder of folders, each with its licence file.")
@click.option(
    "--jsonl", type=FILE, multiple=True, help="JSON lines with text, repository, path and licence; may be gzipped."
)
@click.option("--parquet", type=FILE, multiple=True, help="The same columns, or those of The Stack, in Parquet.")
@click.option("--archive", type=FILE, multiple=True, help="A wheel or source archive of a package.")
@click.option("--dataset", multiple=True, metavar="NAME[:CONFIG]", help="A data set of the Hugging Face hub, streamed.")
@click.option("--split", default="train", help="Which split of the data sets.")
@click.option(
    "--suffix", "suffixes", multiple=True, default=DEFAULT_SUFFIXES,
    help="Of files that are code, such as .py; may be given more than once.",
)  # fmt: skip
@click.option("--max-bytes", type=click.IntRange(min=1), default=Rules().max_bytes, help="Of one file.")
@click.option(
    "--shorten/--no-shorten", "is_shortened", default=None,
    help="Drop licence headers, tabs and the rest of long docstrings from Python: for models of a few million "
    "parameters.  [default: only without a source]",
)  # fmt: skip
@click.option(
    "--deduplicated", is_flag=True, help="The sources have no near copies, as after datatrove: keep no index of them."
)
@click.option("--held-out-percent", type=click.FloatRange(0, 50), default=HELD_OUT_PERCENT)
@click.option("--hold-out", multiple=True, metavar="REPOSITORY", help="Hold this repository out in any case.")
@click.option("--parts", type=click.IntRange(min=1), default=4, help="Files to spread each side over.")
def corpus(
    *, out: Path, folder: Paths, repositories: Paths, jsonl: Paths, parquet: Paths, archive: Paths,
    dataset: tuple[str, ...], split: str, suffixes: tuple[str, ...], max_bytes: int,
    is_shortened: bool | None, deduplicated: bool, held_out_percent: float, hold_out: tuple[str, ...], parts: int,
) -> None:  # fmt: skip
    """Make a corpus: permissive licences only, no tests, tables or near copies, split by repository.

    Without a source it is that of the embedded models: the standard library, and packages that pip fetches.

    \b
    Examples:
      draft-model corpus --out work/embedded/corpus
      draft-model corpus --out corpus --parquet data/python-00.parquet --held-out-percent 0.5 --parts 64
      draft-model corpus --out corpus --folder ~/src/ours --hold-out ours --repositories ~/src/others
    """
    wanted = tuple(suffix if suffix.startswith(".") else f".{suffix}" for suffix in suffixes)
    streams = [
        *(read_folder(path, wanted) for path in folder),
        *(read_repositories(path, wanted) for path in repositories),
        *(read_archive(path) for path in archive),
        *(read_jsonl(path) for path in jsonl),
        *(read_parquet(path) for path in parquet),
        *(read_hugging_face(name.partition(":")[0], split, name.partition(":")[2] or None) for name in dataset),
    ]
    percent, named = held_out_percent, hold_out
    if not streams:
        wheels = out.parent / "wheels"
        fetch_wheels(wheels)
        streams, percent, named = [read_embedded_sources(wheels)], 0.0, (*HELD_OUT, *hold_out)
        is_shortened = True if is_shortened is None else is_shortened
    rules = Rules(suffixes=wanted, max_bytes=max_bytes, is_shortened=bool(is_shortened))
    settings = CorpusSettings(rules, percent, named, parts, deduplicated)
    manifest = collect_corpus(_counted(chain.from_iterable(streams)), out, settings)
    for source in manifest.sources:
        click.echo(
            f"{source.name:24} {source.version:14} {source.licence:32} {source.side:9} {source.num_bytes / 1e6:7.2f} MB"
        )
    for side in Side:
        click.echo(f"{side.value}: {manifest.num_files(side):,} files, {manifest.num_bytes(side) / 1e6:.1f} MB")
    click.echo("left out: " + ", ".join(f"{count:,} {reason}" for reason, count in manifest.num_refused.items()))


def _counted(documents: Iterator[Document]) -> Iterator[Document]:
    with Progress(console=CONSOLE, transient=True) as progress:
        task = progress.add_task("reading", total=None)
        for document in documents:
            progress.update(task, advance=1, description=f"reading {document.repository[:40]}")
            yield document


@click.command()
@corpus_option
@click.option("--out", type=FOLDER, default=WORK / "tokenizer", help="New folder for it.")
@click.option("--vocab-size", type=click.IntRange(min=300), default=VOCAB_SIZE)
def tokenizer(corpus_folder: Path, out: Path, vocab_size: int) -> None:
    """Learn a tokenizer from the training side of a corpus, for models that have no target to take one from.

    \b
    Example:
      draft-model tokenizer --corpus work/embedded/corpus --out work/embedded/tokenizer
    """
    num_tokens = write_tokenizer(Corpus(corpus_folder).training_texts(), out, vocab_size)
    click.echo(f"{out}: {num_tokens:,} tokens")


def row_lengths(text: str) -> tuple[int, ...]:
    """Parse lengths such as "1024,256"; UsageError for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.UsageError(f"--row-tokens: {text!r} is not a list of numbers") from None


@click.command()
@corpus_option
@click.option(
    "--tokenizer", type=FOLDER, default=WORK / "tokenizer",
    help="Folder of a tokenizer, and of its template; a draft uses those of its target.",
)  # fmt: skip
@click.option("--out", type=FOLDER, default=WORK / "data")
@click.option("--tokens", type=number, required=True, help="Training tokens, such as 50e9, rounded up to whole shards.")
@click.option("--row-tokens", default="1024,256,512,256", help="Lengths of rows, in turn.")
@click.option("--block-tokens", type=click.IntRange(min=1), default=2_048, help="Computed at a time.")
@click.option("--blocks-per-shard", type=click.IntRange(min=1), default=1_024)
@click.option("--fim-share", type=click.FloatRange(0, 1), default=FIM_SHARE)
@click.option(
    "--snippet-share", type=click.FloatRange(0, 1), default=SNIPPET_SHARE,
    help="Share of the fill-in-the-middle samples with pieces of other files in front.",
)  # fmt: skip
@click.option("--generated", type=FILE, help="File of completions, from `draft-model generate`.")
@click.option(
    "--generated-share", type=click.FloatRange(0, 1), default=GENERATED_SHARE,
    help="Share of generated samples, if there is a file of them.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), default=1)
@click.option("--seed", type=int, default=20)
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


@click.command()
@corpus_option
@click.option("--target", type=FOLDER, required=True, help="The target, in the Hugging Face layout.")
@click.option("--out", type=FILE, required=True, help="JSON lines: the target's completions with the text around them.")
@click.option("--prompts", type=click.IntRange(min=1), default=20_000)
@click.option("--max-tokens", type=click.IntRange(min=1), default=48, help="Of a completion.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0)
@click.option("--seed", type=int, default=30)
@engine_option
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
