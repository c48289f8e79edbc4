"""The commands that make what models learn from: `corpus`, `tokenizer`, `data`, `generate` and `label`."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click

from draft_model.commands import (
    COUNT,
    FILE,
    FOLDER,
    SHARE,
    WORK,
    corpus_option,
    counting,
    engine_option,
    number,
)
from draft_model.core import VOCAB_SIZE
from draft_model.corpus.collect import HELD_OUT_PERCENT, NUM_PARTS, CorpusSettings, collect_corpus
from draft_model.corpus.filters import DEFAULT_SUFFIXES, Rules
from draft_model.corpus.readers import (
    HELD_OUT,
    fetch_wheels,
    read_archive,
    read_embedded_sources,
    read_folder,
    read_hugging_face,
    read_repositories,
    read_table,
)
from draft_model.corpus.store import Corpus, Document, Side
from draft_model.data.samples import GENERATED_SHARE, SNIPPET_SHARE
from draft_model.data.shards import DataSettings, build_data
from draft_model.data.tokenizer import load_encoder, write_tokenizer
from draft_model.distil import GenerationSettings, draw_cursors
from draft_model.distil import generate as write_generated
from draft_model.labels import NUM_LABELS
from draft_model.labels import label as write_labels

Paths = tuple[Path, ...]
SEED = 30


@click.command()
@click.option("--out", type=FOLDER, default=WORK / "corpus", help="A corpus that is there is replaced, nothing else.")
@click.option("--folder", type=FOLDER, multiple=True, help="Code of your own, one repository; a licence in it counts.")
@click.option("--repositories", type=FOLDER, multiple=True, help="A folder of folders, each with its licence file.")
@click.option(
    "--jsonl", "--parquet", "tables", type=FILE, multiple=True,
    help="JSON lines, also gzipped, or Parquet with text, repository, path and licence, or The Stack's columns.",
)  # fmt: skip
@click.option("--archive", type=FILE, multiple=True, help="A wheel or source archive of a package.")
@click.option("--dataset", multiple=True, metavar="NAME[:CONFIG]", help="A data set of the Hugging Face hub, streamed.")
@click.option("--suffix", "suffixes", multiple=True, default=DEFAULT_SUFFIXES, help="Of files that are code.")
@click.option(
    "--shorten", is_flag=True,
    help="Drop licence headers, tabs and the rest of long docstrings from Python, for models of a few million "
    "parameters. Always so without a source.",
)  # fmt: skip
@click.option("--deduplicated", is_flag=True, help="The sources have no near copies: keep no index of them in memory.")
@click.option("--held-out-percent", type=click.FloatRange(0, 50), default=HELD_OUT_PERCENT, help="Of the repositories.")
@click.option("--hold-out", multiple=True, metavar="REPOSITORY", help="Hold this repository out in any case.")
@click.option("--parts", type=COUNT, default=NUM_PARTS, help="Files to spread each side over; one fits into memory.")
def corpus(
    *, out: Path, folder: Paths, repositories: Paths, tables: Paths, archive: Paths, dataset: tuple[str, ...],
    suffixes: tuple[str, ...], shorten: bool, deduplicated: bool, held_out_percent: float, hold_out: tuple[str, ...],
    parts: int,
) -> None:  # fmt: skip
    """Make a corpus: permissive licences only, no tests, tables or near copies, split by repository.

    Without a source it is that of the embedded models: the standard library, and packages that pip fetches.

    \b
    Examples:
      draft-model corpus --out work/embedded/corpus
      draft-model corpus --out corpus --parquet data/python-00.parquet --held-out-percent 0.5 --parts 64
      draft-model corpus --out corpus --folder ~/src/ours --hold-out ours --repositories ~/src/others
    """
    wanted = tuple(f".{suffix.removeprefix('.')}" for suffix in suffixes)
    streams = [
        *(read_folder(path, wanted) for path in folder),
        *(read_repositories(path, wanted) for path in repositories),
        *map(read_archive, archive),
        *map(read_table, tables),
        *map(read_hugging_face, dataset),
    ]
    if streams:
        settings = CorpusSettings(Rules(wanted, is_shortened=shorten), held_out_percent, hold_out, parts, deduplicated)
        manifest = collect_corpus(_counted(chain.from_iterable(streams)), out, settings)
    else:
        manifest = collect_embedded(out, hold_out)
    for side in Side:
        click.echo(f"{side}: {manifest.num_files(side):,} files, {manifest.num_bytes(side) / 1e6:.1f} MB")
    click.echo("left out: " + ", ".join(f"{count:,} {reason}" for reason, count in manifest.num_refused.items()))


def collect_embedded(out: Path, hold_out: tuple[str, ...] = ()) -> Any:  # noqa: ANN401
    """Collect the corpus of the embedded models; return its manifest."""
    wheels = out.parent / "wheels"
    with counting("fetching packages"):
        fetch_wheels(wheels)
    settings = CorpusSettings(Rules(is_shortened=True), held_out_percent=0.0, held_out=(*HELD_OUT, *hold_out))
    return collect_corpus(_counted(read_embedded_sources(wheels)), out, settings)


def _counted(documents: Iterator[Document]) -> Iterator[Document]:
    with counting("files read") as on_done:
        for number_read, document in enumerate(documents, 1):
            on_done(number_read, None)
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
    with counting("learning the tokenizer"):
        num_tokens = write_tokenizer(Corpus(corpus_folder).training_texts(), out, vocab_size)
    click.echo(f"{out}: {num_tokens:,} tokens")


def row_lengths(text: str) -> tuple[int, ...]:
    """Lengths such as "1024,256": the type of an option."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers") from None


@click.command()
@corpus_option
@click.option(
    "--tokenizer", type=FOLDER, default=WORK / "tokenizer", help="Its template too; a draft uses those of its target."
)
@click.option("--out", type=FOLDER, default=WORK / "data")
@click.option("--tokens", type=number, required=True, help="Training tokens, such as 50e9, rounded up to whole shards.")
@click.option("--row-tokens", type=row_lengths, default="1024,256,512,256", help="Lengths of rows, in turn.")
@click.option("--block-tokens", type=COUNT, default=DataSettings.block_tokens, help="Computed at a time.")
@click.option(
    "--snippet-share", type=SHARE, default=SNIPPET_SHARE,
    help="Share of the fill-in-the-middle samples with pieces of other files in front.",
)  # fmt: skip
@click.option("--generated", type=FILE, help="Half of the samples have completions from `draft-model generate`.")
@click.option("--workers", type=COUNT, default=1)
def data(
    *, corpus_folder: Path, tokenizer: Path, out: Path, tokens: int, row_tokens: tuple[int, ...], block_tokens: int,
    snippet_share: float, generated: Path | None, workers: int,
) -> None:  # fmt: skip
    """Cut a corpus into rows of tokens in the template that the server uses.

    After an interruption the same command continues.

    \b
    Examples:
      draft-model data --tokens 100e6
      draft-model data --corpus corpus --tokenizer codellama-13b --out data --tokens 50e9 --row-tokens 4096 \\
          --block-tokens 16384 --workers 32
    """
    shares: dict[str, Any] = {"snippet_share": snippet_share, "generated_share": GENERATED_SHARE if generated else 0.0}
    try:
        settings = DataSettings(tokens, block_tokens, row_tokens, **shares)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    template = load_encoder(tokenizer).template
    with counting("shards") as on_shard:
        build_data(
            Corpus(corpus_folder), tokenizer, template, out, settings, generated=generated, num_workers=workers,
            on_shard=on_shard,
        )  # fmt: skip
    click.echo(f"{out}: {settings.num_shards} shards, {settings.made_tokens / 1e6:,.1f}M tokens, {template.name}")


@click.command()
@corpus_option
@click.option("--target", type=FOLDER, required=True, help="The target, in the Hugging Face layout.")
@click.option("--out", type=FILE, required=True, help="JSON lines: the target's completions with the text around them.")
@click.option("--prompts", type=COUNT, default=20_000)
@click.option("--max-tokens", type=COUNT, default=48, help="Of a completion.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0)
@engine_option
def generate(
    *, corpus_folder: Path, target: Path, out: Path, prompts: int, max_tokens: int, temperature: float,
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
    cursors = draw_cursors(Corpus(corpus_folder), encoder, prompts, SEED)
    settings = GenerationSettings(max_tokens, temperature, SEED)
    with counting("cursors") as on_done:
        written = write_generated(target, encoder, cursors, settings, out, options=engine_options, on_done=on_done)
    click.echo(f"{out}: {written:,} completions")


@click.command()
@click.option("--target", type=FOLDER, required=True, help="The target, in the Hugging Face layout.")
@click.option("--data", "data_folder", type=FOLDER, default=WORK / "data", help="From `draft-model data`.")
@click.option("--out", type=FOLDER, required=True, help="The labelled data, for `draft-model train --data`.")
@click.option("--tokens", type=number, required=True, help="Tokens to label, rounded up to whole shards.")
def label(*, target: Path, data_folder: Path, out: Path, tokens: int) -> None:
    """Let the target say which tokens it finds likely behind each token of the data, for a draft to learn from.

    It computes each token once; `draft-model train` can take many passes over the labels. After an interruption the
    same command continues.

    \b
    Example:
      draft-model label --target TARGET --data data --out labelled --tokens 1e6
      draft-model train --preset embedded-draft --data labelled --out run --tokens 8e6 --vocabulary 16000
    """
    with counting("tokens") as on_done:
        settings = write_labels(target, data_folder, out, tokens, on_done)
    click.echo(f"{out}: {settings.made_tokens:,} tokens, {NUM_LABELS} labels each")
