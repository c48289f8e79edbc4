"""What a target wrote at cursors in the corpus: splits whose completion is the target's, as JSON lines."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from draft_model.data.fim import Split
from draft_model.errors import PipelineError
from draft_model.files import write_atomically


def save_splits(splits: Iterable[Split], path: Path) -> None:
    """Write splits, all or none."""
    write_atomically(path, "".join(json.dumps(asdict(split)) + "\n" for split in splits).encode())


def load_splits(path: Path) -> list[Split]:
    """Read what `save_splits` wrote; PipelineError when there is nothing or it is something else."""
    if not path.is_file():
        raise PipelineError(f"no generated text at {path}; make it with `draft-model generate --out {path}`")
    try:
        splits = [Split(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, TypeError) as error:
        raise PipelineError(f"{path} holds no splits: {error}") from error
    if not splits:
        raise PipelineError(f"{path} is empty")
    return splits
