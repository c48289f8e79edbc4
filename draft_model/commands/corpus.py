"""`draft-model corpus` and `draft-model tokenizer`."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
from rich.progress import Progress

from draft_model.commands.common import CONSOLE, FILE, FOLDER, WORK, corpus_option, plain_errors
from draft_model.core.files import replacing_folder
from draft_model.core.presets import VOCAB_SIZE
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.documents import Document, Side
from draft_model.corpus.filters import DEFAULT_SUFFIXES, Rules
from draft_model.corpus.readers import (
    read_archive,
    read_folder,
    read_hugging_face,
    read_jsonl,
    read_parquet,
    read_repositories,
)
from draft_model.corpus.sources import HELD_OUT, fetch_wheels, read_embedded_sources
from draft_model.corpus.split import HELD_OUT_PERCENT
from draft_model.corpus.store import Corpus
from draft_model.data.tokenizer import train_tokenizer

Paths = tuple[Path, ...]


@click.command()
@click.option(
    "--out",
    type=FOLDER,
    default=WORK / "corpus",
    show_default=True,
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
@click.option("--split", default="train", show_default=True, help="Which split of the data sets.")
@click.option(
    "--suffix", "suffixes", multiple=True, default=DEFAULT_SUFFIXES, show_default=True,
    help="Of files that are code, such as .py; may be given more than once.",
)  # fmt: skip
@click.option(
    "--max-bytes", type=click.IntRange(min=1), default=Rules().max_bytes, show_default=True, help="Of one file."
)
@click.option(
    "--shorten/--no-shorten", "is_shortened", default=None,
    help="Drop licence headers, tabs and the rest of long docstrings from Python: for models of a few million "
    "parameters.  [default: only without a source]",
)  # fmt: skip
@click.option(
    "--deduplicated", is_flag=True, help="The sources have no near copies, as after datatrove: keep no index of them."
)
@click.option("--held-out-percent", type=click.FloatRange(0, 50), default=HELD_OUT_PERCENT, show_default=True)
@click.option("--hold-out", multiple=True, metavar="REPOSITORY", help="Hold this repository out in any case.")
@click.option(
    "--parts", type=click.IntRange(min=1), default=4, show_default=True, help="Files to spread each side over."
)
@plain_errors
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
@click.option("--out", type=FOLDER, default=WORK / "tokenizer", show_default=True, help="New folder for it.")
@click.option("--vocab-size", type=click.IntRange(min=300), default=VOCAB_SIZE, show_default=True)
@plain_errors
def tokenizer(corpus_folder: Path, out: Path, vocab_size: int) -> None:
    """Learn a tokenizer from the training side of a corpus, for models that have no target to take one from.

    \b
    Example:
      draft-model tokenizer --corpus work/embedded/corpus --out work/embedded/tokenizer
    """
    texts = (document.text for document in Corpus(corpus_folder).documents(Side.TRAIN))
    with replacing_folder(out, mark="") as folder:
        learnt = train_tokenizer(texts, vocab_size)
        learnt.save_pretrained(str(folder))
    click.echo(f"{out}: {len(learnt):,} tokens")
