"""The corpus on disk: Parquet files for each side of the split, a manifest, and a card that lists the sources.

    corpus.json  README.md  train-00000.parquet ...  held_out-00000.parquet ...

A hash of the folder's name chooses the part, so each part is a sample of the corpus, and a training sample can show
other files of its folder.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from draft_model.core import PipelineError

MANIFEST = "corpus.json"
ROWS_A_GROUP = 512
_SCHEMA = pa.schema([(name, pa.string()) for name in ("repository", "path", "licence", "version", "text")])


class Side(Enum):
    """The two sides of the split; each repository is on one side."""

    TRAIN = "train"
    HELD_OUT = "held_out"

    def __str__(self) -> str:
        """The side in words."""
        return self.value.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Document:
    """One file. `repository` names the unit of the split: a repository, a package, or a user's folder."""

    repository: str
    path: str
    licence: str
    """An SPDX expression, or the source's own words if they can't be read as one."""
    text: str
    version: str = "-"


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """The part of the corpus that one repository contributed."""

    name: str
    version: str
    licence: str
    side: str
    num_files: int
    num_bytes: int


@dataclass(frozen=True)
class Manifest:
    """The contents of a corpus. `digest` is that of all texts in their order: corpora with equal digests are equal."""

    digest: str
    num_parts: int
    sources: tuple[SourceSummary, ...]
    num_refused: dict[str, int]

    def num_files(self, side: Side) -> int:
        """Files of one side."""
        return sum(source.num_files for source in self.sources if source.side == side.value)

    def num_bytes(self, side: Side) -> int:
        """Bytes of text of one side."""
        return sum(source.num_bytes for source in self.sources if source.side == side.value)


class CorpusWriter:
    """Writes documents, each with its side, and makes the manifest at the end."""

    def __init__(self, folder: Path, num_parts: int) -> None:
        self._folder = folder
        self._num_parts = num_parts
        self._parts: dict[Path, Any] = {}
        self._rows: defaultdict[Path, list[dict[str, str]]] = defaultdict(list)
        self._digest = hashlib.sha256()
        self._sources: dict[tuple[str, str], SourceSummary] = {}

    def add(self, document: Document, side: Side) -> None:
        """Write one document to its part."""
        part = self._folder / part_name(side, part_of(document.repository, document.path, self._num_parts))
        self._rows[part].append(asdict(document))
        if len(self._rows[part]) >= ROWS_A_GROUP:
            self._flush(part)
        data = document.text.encode("utf-8", "replace")
        self._digest.update(f"{side.value}\n{document.repository}\n{document.path}\n{len(data)}\n".encode() + data)
        key = (document.repository, document.licence)
        old = self._sources.get(key) or SourceSummary(
            document.repository, document.version, document.licence, side.value, 0, 0
        )
        self._sources[key] = replace(old, num_files=old.num_files + 1, num_bytes=old.num_bytes + len(data))

    def finish(self, num_refused: dict[str, int]) -> Manifest:
        """Close the files, write their manifest and the card, and return the manifest."""
        for part in self._rows:
            self._flush(part)
            self._parts[part].close()
        sources = tuple(sorted(self._sources.values(), key=lambda source: source.name.lower()))
        manifest = Manifest(self._digest.hexdigest()[:16], self._num_parts, sources, num_refused)
        text = json.dumps(asdict(manifest), indent=1) + "\n"
        (self._folder / MANIFEST).write_text(text, encoding="utf-8")
        (self._folder / "README.md").write_text(render_card(manifest), encoding="utf-8")
        return manifest

    def _flush(self, part: Path) -> None:
        if part not in self._parts:
            self._parts[part] = pq.ParquetWriter(part, _SCHEMA, compression="zstd")
        self._parts[part].write_table(pa.Table.from_pylist(self._rows[part], schema=_SCHEMA))
        self._rows[part] = []


def render_card(manifest: Manifest) -> str:
    """The card as Markdown: the sources with their licences, and the number of refused files by reason."""
    sizes = [f"{side}: {manifest.num_files(side):,} files, {manifest.num_bytes(side) / 1e6:.1f} MB  " for side in Side]
    refused = [f"| {reason} | {count:,} |" for reason, count in manifest.num_refused.items()]
    head = ["# Corpus", "", *sizes, f"digest: {manifest.digest}", ""]
    return (
        "\n".join([*head, "| left out because of | files |", "| --- | --- |", *refused, ""])
        + "\n"
        + source_table(manifest.sources)
        + "\n"
    )


def source_table(sources: Iterable[SourceSummary]) -> str:
    """The sources as a Markdown table."""
    rows = [
        f"| {one.name} | {one.version} | {one.licence} | {one.side.replace('_', '-')} | {one.num_files:,} | "
        f"{one.num_bytes / 1e6:.2f} |"
        for one in sources
    ]
    return "\n".join(["| source | version | licence | side | files | MB |", "|" + " --- |" * 6, *rows])


def part_name(side: Side, number: int) -> str:
    """The name of a part's file."""
    return f"{side.value}-{number:05d}.parquet"


class Corpus:
    """A corpus on disk."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest; PipelineError names the command to run when there is none."""
        self.folder = folder
        path = folder / MANIFEST
        if not path.is_file():
            raise PipelineError(f"no corpus in {folder}; make one with `draft-model corpus --out {folder}`")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            sources = tuple(SourceSummary(**source) for source in record.pop("sources"))
            self.manifest = Manifest(sources=sources, **record)
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(f"{path} is not a corpus manifest: {error}") from error

    def parts(self, side: Side) -> list[int]:
        """The numbers of the parts that have files of this side."""
        numbers = range(self.manifest.num_parts)
        return [number for number in numbers if (self.folder / part_name(side, number)).is_file()]

    def documents(self, side: Side, part: int | None = None) -> Iterator[Document]:
        """The documents of one side, of one part or of all, in the order in which they were written."""
        for number in self.parts(side) if part is None else [part]:
            file = pq.ParquetFile(self.folder / part_name(side, number))
            for batch in file.iter_batches(ROWS_A_GROUP):
                yield from (Document(**row) for row in batch.to_pylist())

    def training_texts(self) -> Iterator[str]:
        """The texts to train on; one batch of documents is in memory at a time."""
        return (document.text for document in self.documents(Side.TRAIN))

    def texts(self, side: Side, part: int | None = None) -> list[str]:
        """The texts of one side, of one part or of all."""
        return [document.text for document in self.documents(side, part)]


def part_of(repository: str, path: str, num_parts: int) -> int:
    """The part of the corpus for a file and its whole folder; each part is a sample of the corpus."""
    folder = PurePosixPath(path).parent
    digest = hashlib.blake2b(f"{repository}\n{folder}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_parts
