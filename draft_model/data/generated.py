"""Splits whose completions a target wrote, as JSON lines. The first line is a digest of their sources."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from draft_model.core.errors import PipelineError
from draft_model.core.files import locked, replacing_file, write_atomically
from draft_model.data.fim import Split

MADE_OF = "made_of"


class Chunks:
    """A file of splits that is written in chunks: a folder beside it keeps the chunks until all are complete."""

    def __init__(self, path: Path, folder: Path, made_of: str) -> None:
        self._path = path
        self._folder = folder
        self._head = json.dumps({MADE_OF: made_of}).encode() + b"\n"

    @property
    def is_joined(self) -> bool:
        """Whether the file exists already, made of the same sources."""
        if not self._path.is_file():
            return False
        with self._path.open("rb") as file:
            return file.readline() == self._head

    def missing(self, num_chunks: int) -> list[int]:
        """The numbers of the chunks that are missing."""
        return [number for number in range(num_chunks) if not self._file(number).is_file()]

    def write(self, number: int, splits: Iterable[Split]) -> None:
        """Write a chunk; PipelineError when the disk refuses, which leaves the other chunks intact."""
        write_atomically(self._file(number), "".join(json.dumps(asdict(split)) + "\n" for split in splits).encode())

    def join(self, num_chunks: int) -> None:
        """Join all chunks to the file, replacing an old one."""
        with replacing_file(self._path) as file:
            file.write(self._head)
            file.writelines(self._file(number).read_bytes() for number in range(num_chunks))

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:05}.jsonl"


@contextmanager
def keeping_chunks(path: Path, made_of: str) -> Iterator[Chunks]:
    """Open the chunks of a file. `made_of` is a digest of their sources: chunks of other sources are not reused.

    Raises PipelineError when the disk refuses or another process writes the file.
    """
    folder = path.with_name(f".{path.name}.{made_of}.chunks")
    with locked(folder / "lock", str(path)):
        chunks = Chunks(path, folder, made_of)
        yield chunks
        if chunks.is_joined:
            shutil.rmtree(folder, ignore_errors=True)


def load_splits(path: Path) -> list[Split]:
    """Read a file that `Chunks.join` wrote; PipelineError when it is missing, empty or of another kind."""
    if not path.is_file():
        raise PipelineError(f"no generated text at {path}; make it with `draft-model generate --out {path}`")
    try:
        with path.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        splits = [Split(**record) for record in records if MADE_OF not in record]
    except (ValueError, TypeError) as error:
        raise PipelineError(f"{path} holds no splits: {error}") from error
    if not splits:
        raise PipelineError(f"{path} is empty")
    return splits
