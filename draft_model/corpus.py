"""The corpus: Python that the locked environment has anyway, permissively licensed, cleaned and split.

Whole files are held out, chosen by a hash of their name, so that a rerun holds out the same ones. The result is one
JSON object a line: `source`, `path`, `held_out`, `text`.
"""

import hashlib
import importlib.metadata
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from draft_model.cleaning import clean_source
from draft_model.errors import PipelineError
from draft_model.files import write_atomically
from draft_model.sources import EXCLUDED_PARTS, PACKAGES, STDLIB, Source

HELD_OUT_PERCENT = 2
MIN_BYTES, MAX_BYTES = 400, 400_000
LONG_LINE_CHARS = 20
MAX_SEEN_SHARE = 0.6


@dataclass(frozen=True)
class Document:
    """One source file after cleaning."""

    source: str
    path: str
    held_out: bool
    text: str


@dataclass(frozen=True)
class SourceSummary:
    """What one package put into the corpus, for the model card."""

    name: str
    version: str
    licence: str
    num_files: int
    num_bytes: int


@dataclass(frozen=True)
class Corpus:
    """Cleaned documents and where they came from."""

    documents: tuple[Document, ...]
    summaries: tuple[SourceSummary, ...]

    def texts(self, *, held_out: bool) -> list[str]:
        """The documents' texts of one side of the split."""
        return [document.text for document in self.documents if document.held_out == held_out]


def is_held_out(source: str, path: str) -> bool:
    """Whether a file is held out: by a hash of its name, so the same on every machine and in every run."""
    digest = hashlib.sha256(f"{source}/{path}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def is_wanted(path: PurePosixPath, source: Source) -> bool:
    """Whether a path inside a source is ordinary code: no tests, generated tables or vendored copies."""
    if path.suffix != ".py" or EXCLUDED_PARTS.intersection(path.parts):
        return False
    if path.name.startswith("test_") or path.stem.endswith(("_test", "_pb2", "_pb2_grpc")) or path.stem == "conftest":
        return False
    text = path.as_posix()
    if source.only and not text.startswith(source.only):
        return False
    return not text.startswith(source.without)


def stdlib_files() -> Iterator[tuple[PurePosixPath, Path]]:
    """Every Python file of the running interpreter's standard library, as (path inside it, path on disk), sorted."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        yield PurePosixPath(path.relative_to(root).as_posix()), path


def package_files(name: str) -> Iterator[tuple[PurePosixPath, Path]]:
    """Every Python file of an installed distribution, sorted; nothing when it is not installed."""
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        return
    for entry in sorted(files, key=str):
        if entry.suffix == ".py":
            yield PurePosixPath(entry.as_posix()), Path(str(entry.locate()))


def folder_files(root: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """Every Python file under a folder of one's own."""
    if not root.is_dir():
        raise PipelineError(f"{root} is not a folder")
    for path in sorted(root.rglob("*.py")):
        yield PurePosixPath(path.relative_to(root).as_posix()), path


class Deduplicator:
    """Refuses a text whose lines have mostly been seen before; vendored and copied modules differ in little else."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def is_new(self, text: str) -> bool:
        """Whether the text is mostly new, in which case its lines count as seen from now on."""
        lines = [line.strip() for line in text.splitlines()]
        keys = [_stable_hash(line) for line in lines if len(line) >= LONG_LINE_CHARS]
        if not keys:
            return False
        seen_share = sum(key in self._seen for key in keys) / len(keys)
        if seen_share > MAX_SEEN_SHARE:
            return False
        self._seen.update(keys)
        return True


def _stable_hash(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "big")


def _documents(
    source: Source, files: Iterable[tuple[PurePosixPath, Path]], duplicates: Deduplicator
) -> Iterator[Document]:
    for inner, path in files:
        if not is_wanted(inner, source):
            continue
        try:
            if not MIN_BYTES <= path.stat().st_size <= MAX_BYTES:
                continue
            text = clean_source(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        if text is not None and duplicates.is_new(text):
            name = inner.as_posix()
            yield Document(source.name, name, is_held_out(source.name, name), text)


def _version_of(source: Source) -> str:
    if source is STDLIB:
        return sys.version.split()[0]
    return importlib.metadata.version(source.name)


def _summarise(source: Source, documents: list[Document], version: str) -> SourceSummary:
    num_bytes = sum(len(document.text.encode()) for document in documents)
    return SourceSummary(source.name, version, source.licence, len(documents), num_bytes)


def collect_corpus(folder: Path | None = None) -> Corpus:
    """Collect the standard library and the listed packages, or, with `folder`, that folder's Python files instead.

    Raises PipelineError when nothing usable is found or one side of the split would be empty.
    """
    duplicates = Deduplicator()
    documents: list[Document] = []
    summaries: list[SourceSummary] = []
    if folder is not None:
        source = Source(folder.name, "yours")
        documents = list(_documents(source, folder_files(folder), duplicates))
        summaries = [_summarise(source, documents, "-")]
    else:
        for source in (STDLIB, *PACKAGES):
            files = stdlib_files() if source is STDLIB else package_files(source.name)
            found = list(_documents(source, files, duplicates))
            if found:
                documents += found
                summaries.append(_summarise(source, found, _version_of(source)))
    corpus = Corpus(tuple(documents), tuple(summaries))
    if not corpus.texts(held_out=False) or not corpus.texts(held_out=True):
        raise PipelineError(
            f"the corpus is empty or too small to hold anything out: {len(documents)} usable Python files found"
        )
    return corpus


def save_corpus(corpus: Corpus, path: Path) -> None:
    """Write the corpus as JSON lines, and its summary beside it as `<name>.sources.json`."""
    lines = (json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in corpus.documents)
    write_atomically(path, "".join(lines).encode())
    summary = json.dumps([asdict(entry) for entry in corpus.summaries], indent=1)
    write_atomically(path.with_suffix(".sources.json"), summary.encode())


def load_corpus(path: Path) -> Corpus:
    """Read what `save_corpus` wrote; PipelineError names the command to run when it is not there."""
    if not path.is_file():
        raise PipelineError(f"no corpus at {path}; make one with `draft-model corpus --out {path}`")
    with path.open(encoding="utf-8") as lines:
        documents = tuple(Document(**json.loads(line)) for line in lines)
    summary = json.loads(path.with_suffix(".sources.json").read_text(encoding="utf-8"))
    return Corpus(documents, tuple(SourceSummary(**entry) for entry in summary))
