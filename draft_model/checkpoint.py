"""Checkpoints: what a run needs to go on as if it had not been interrupted, in one file that is replaced atomically."""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draft_model.errors import PipelineError
from draft_model.files import write_atomically


@dataclass(frozen=True)
class Checkpoint:
    """Weights and optimiser state after `step` steps; `fingerprint` names corpus, tokenizer, shape and settings."""

    fingerprint: str
    step: int
    active_s: float
    num_tokens: int
    model: dict[str, Any]
    optimiser: dict[str, Any]


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Replace the checkpoint at `path`; PipelineError when the disk refuses, the old one is then still there."""
    buffer = io.BytesIO()
    torch.save(dict(vars(checkpoint)), buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path, fingerprint: str) -> Checkpoint | None:
    """The checkpoint at `path`, or None when there is none; PipelineError when it belongs to another run."""
    if not path.is_file():
        return None
    try:
        checkpoint = Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    except (RuntimeError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise PipelineError(f"{path} is not a checkpoint of this program; remove it to start anew") from error
    if checkpoint.fingerprint != fingerprint:
        raise PipelineError(
            f"{path} was made with another corpus, tokenizer, shape or settings; remove it to start anew"
        )
    return checkpoint
