"""What a target wrote at cursors in the corpus: splits whose completion is the target's, as JSON lines.

The first line says what they are made of.
"""

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
    """A file of splits that comes chunk by chunk: each is kept in a folder beside it until all are there."""

    def __init__(self, path: Path, folder: Path, made_of: str) -> None:
        self._path = path
        self._folder = folder
        self._head = json.dumps({MADE_OF: made_of}).encode() + b"\n"

    @property
    def is_joined(self) -> bool:
        """Whether the file is there already, made of the same."""
        if not self._path.is_file():
            return False
        with self._path.open("rb") as file:
            return file.readline() == self._head

    def missing(self, num_chunks: int) -> list[int]:
        """The numbers of the chunks that are not there yet."""
        return [number for number in range(num_chunks) if not self._file(number).is_file()]

    def write(self, number: int, splits: Iterable[Split]) -> None:
        """Keep a chunk; PipelineError when the disk refuses, the others are then still there."""
        write_atomically(self._file(number), "".join(json.dumps(asdict(split)) + "\n" for split in splits).encode())

    def join(self, num_chunks: int) -> None:
        """Make the file of all the chunks, in place of one that is there."""
        with replacing_file(self._path) as file:
            file.write(self._head)
            file.writelines(self._file(number).read_bytes() for number in range(num_chunks))

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:05}.jsonl"


@contextmanager
def keeping_chunks(path: Path, made_of: str) -> Iterator[Chunks]:
    """Chunks of a file; `made_of` names what they are made of, and only chunks of the same are gone on with.

    Raises PipelineError when the disk refuses or another process is at it.
    """
    folder = path.with_name(f".{path.name}.{made_of}.chunks")
    with locked(folder / "lock", str(path)):
        chunks = Chunks(path, folder, made_of)
        yield chunks
        if chunks.is_joined:
            shutil.rmtree(folder, ignore_errors=True)


def load_splits(path: Path) -> list[Split]:
    """Read what `Chunks.join` wrote; PipelineError when there is nothing or it is something else."""
    if not path.is_file():
        raise PipelineError(f"no generated text at {path}; make it with `draft-model generate --out {path}`")
    try:
        with path.open(encoding="utf-8") as lines:
            told = [json.loads(line) for line in lines]
        splits = [Split(**record) for record in told if MADE_OF not in record]
    except (ValueError, TypeError) as error:
        raise PipelineError(f"{path} holds no splits: {error}") from error
    if not splits:
        raise PipelineError(f"{path} is empty")
    return splits
