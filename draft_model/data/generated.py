"""What a target wrote at cursors in the corpus: splits whose completion is the target's, as JSON lines."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from draft_model.data.fim import Split
from draft_model.errors import PipelineError
from draft_model.files import replacing, write_atomically


class Chunks:
    """A file of splits that comes chunk by chunk: each is kept beside it until all are there.

    `made_of` names what they are made of: what was begun with something else is refused with a PipelineError.
    """

    def __init__(self, path: Path, made_of: str) -> None:
        self._path = path
        self._folder = path.with_name(f".{path.name}.chunks")
        told = self._folder / "made-of"
        if not told.is_file():
            write_atomically(told, made_of.encode())
        elif told.read_text(encoding="utf-8") != made_of:
            raise PipelineError(
                f"{path} was begun with another target, corpus or settings; remove {self._folder} to start anew"
            )

    def missing(self, num_chunks: int) -> list[int]:
        """The numbers of the chunks that are not there yet."""
        return [number for number in range(num_chunks) if not self._file(number).is_file()]

    def write(self, number: int, splits: Iterable[Split]) -> None:
        """Keep a chunk; PipelineError when the disk refuses, the others are then still there."""
        write_atomically(self._file(number), "".join(json.dumps(asdict(split)) + "\n" for split in splits).encode())

    def join(self, num_chunks: int) -> int:
        """Make the file of all the chunks and return how many splits it has; where they have none there is no file."""
        chunks = [self._file(number).read_bytes() for number in range(num_chunks)]
        num_splits = sum(chunk.count(b"\n") for chunk in chunks)
        if num_splits:
            with replacing(self._path) as file:
                file.writelines(chunks)
        shutil.rmtree(self._folder)
        return num_splits

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:05}.jsonl"


def load_splits(path: Path) -> list[Split]:
    """Read what `Chunks` wrote; PipelineError when there is nothing or it is something else."""
    if not path.is_file():
        raise PipelineError(f"no generated text at {path}; make it with `draft-model generate --out {path}`")
    try:
        splits = [Split(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, TypeError) as error:
        raise PipelineError(f"{path} holds no splits: {error}") from error
    if not splits:
        raise PipelineError(f"{path} is empty")
    return splits
