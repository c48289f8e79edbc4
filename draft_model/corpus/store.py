"""The corpus on disk: Parquet files for each side of the split, a manifest, and a card that lists the sources.

    corpus.json  README.md  train-00000.parquet ...  held_out-00000.parquet ...

A hash of the folder's name chooses the part, so each part is a sample of the corpus, and a training sample can show
other files of its folder.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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


class _Part:
    """A Parquet file that is being written."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, document: Document) -> None:
        self._rows.append(asdict(document))
        if len(self._rows) >= ROWS_A_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=_SCHEMA))
            self._rows = []


class CorpusWriter:
    """Writes documents, each with its side, and makes the manifest at the end."""

    def __init__(self, folder: Path, num_parts: int) -> None:
        self._folder = folder
        self._num_parts = num_parts
        self._parts: dict[tuple[Side, int], _Part] = {}
        self._digest = hashlib.sha256()
        self._sources: dict[tuple[str, str], SourceSummary] = {}

    def add(self, document: Document, side: Side) -> None:
        """Write one document to its part."""
        number = part_of(document.repository, document.path, self._num_parts)
        part = self._parts.get((side, number))
        if part is None:
            part = self._parts[side, number] = _Part(self._folder / part_name(side, number))
        part.add(document)
        data = document.text.encode("utf-8", "replace")
        self._digest.update(f"{side.value}\n{document.repository}\n{document.path}\n{len(data)}\n".encode() + data)
        key = (document.repository, document.licence)
        old = self._sources.get(key)
        files, size = (old.num_files, old.num_bytes) if old else (0, 0)
        self._sources[key] = SourceSummary(
            document.repository, document.version, document.licence, side.value, files + 1, size + len(data)
        )

    def finish(self, num_refused: dict[str, int]) -> Manifest:
        """Close the files and return their manifest."""
        for part in self._parts.values():
            part.close()
        sources = tuple(sorted(self._sources.values(), key=lambda source: source.name.lower()))
        return Manifest(self._digest.hexdigest()[:16], self._num_parts, sources, num_refused)


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


def write_manifest(folder: Path, manifest: Manifest, card: str) -> None:
    """Write manifest and card beside the parts."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")


def part_of(repository: str, path: str, num_parts: int) -> int:
    """The part of the corpus for a file and its whole folder; each part is a sample of the corpus."""
    folder = PurePosixPath(path).parent
    digest = hashlib.blake2b(f"{repository}\n{folder}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_parts
