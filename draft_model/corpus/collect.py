"""Collects a corpus from a stream of documents: filters, removes near copies, splits, writes; and renders its card."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from draft_model.core.errors import PipelineError
from draft_model.core.files import replacing_folder
from draft_model.corpus.documents import Document, Side
from draft_model.corpus.duplicates import NearDuplicates
from draft_model.corpus.filters import Refusal, Rules, judge
from draft_model.corpus.split import HELD_OUT_PERCENT, side_of
from draft_model.corpus.store import MANIFEST, CorpusWriter, Manifest, write_manifest

NUM_PARTS = 4


@dataclass(frozen=True)
class CorpusSettings:
    """The settings of a corpus. Sources that `are_distinct` need no index of near copies."""

    rules: Rules = field(default_factory=Rules)
    held_out_percent: float = HELD_OUT_PERCENT
    held_out: Collection[str] = ()
    num_parts: int = NUM_PARTS
    are_distinct: bool = False


def collect_corpus(documents: Iterable[Document], out: Path, settings: CorpusSettings) -> Manifest:
    """Write the corpus of `documents` to `out`, whole or not at all.

    Raises PipelineError when `out` holds something else than a corpus, one side of the split would be empty, a
    repository to hold out is not among the documents, or the disk refuses.
    """
    refused: Counter[str] = Counter()
    duplicates = NearDuplicates()
    with replacing_folder(out, MANIFEST) as folder:
        writer = CorpusWriter(folder, settings.num_parts)
        for document in documents:
            judged = judge(document, settings.rules)
            if isinstance(judged, Document) and not settings.are_distinct and not duplicates.is_new(judged.text):
                judged = Refusal.DUPLICATE
            if isinstance(judged, Refusal):
                refused[judged.value] += 1
            else:
                writer.add(judged, side_of(judged.repository, settings.held_out_percent, settings.held_out))
        manifest = writer.finish(dict(sorted(refused.items())))
        _check(manifest, settings.held_out)
        write_manifest(folder, manifest, render_card(manifest))
    return manifest


def _check(manifest: Manifest, held_out: Collection[str]) -> None:
    read = {source.name.lower() for source in manifest.sources}
    unknown = [name for name in held_out if name.lower() not in read]
    if unknown:
        raise PipelineError(f"to hold out, but nothing usable of it was read: {', '.join(sorted(unknown))}")
    for side in Side:
        if not manifest.num_files(side):
            total = sum(source.num_files for source in manifest.sources)
            left_out = ", ".join(f"{count} {reason}" for reason, count in manifest.num_refused.items())
            hint = "; --hold-out NAME holds a repository out" if side is Side.HELD_OUT and total else ""
            raise PipelineError(
                f"the {side.value.replace('_', '-')} side of the corpus would be empty: {total} usable files, "
                f"left out: {left_out or 'none'}{hint}"
            )


def render_card(manifest: Manifest) -> str:
    """The card as Markdown: the sources with their licences, and the number of refused files by reason."""
    lines = [
        "# Corpus",
        "",
        *(
            f"{side.value.replace('_', '-')}: {manifest.num_files(side):,} files, "
            f"{manifest.num_bytes(side) / 1e6:.1f} MB  "
            for side in Side
        ),
        f"digest: {manifest.digest}",
        "",
        "| left out because of | files |",
        "| --- | --- |",
        *(f"| {reason} | {count:,} |" for reason, count in manifest.num_refused.items()),
        "",
        "| source | version | licence | side | files | MB |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {source.name} | {source.version} | {source.licence} | {source.side.replace('_', '-')} | "
            f"{source.num_files:,} | {source.num_bytes / 1e6:.2f} |"
            for source in manifest.sources
        ),
    ]
    return "\n".join(lines) + "\n"
