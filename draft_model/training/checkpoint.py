"""Checkpoints: all state that a run needs to resume exactly, in one file that is replaced atomically."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draft_model.core.errors import PipelineError
from draft_model.core.files import replacing_file


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step` steps, which is also the position in the data.

    `fingerprint` names data, shape and settings; `random` is the state of torch's generators.
    """

    fingerprint: str
    step: int
    active_s: float
    num_tokens: int
    model: dict[str, Any]
    optimiser: dict[str, Any]
    random: dict[str, Any]


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Replace the checkpoint at `path`; PipelineError when the disk refuses, which leaves the old one."""
    with replacing_file(path) as file:
        torch.save(dict(vars(checkpoint)), file)


def load_checkpoint(path: Path, fingerprint: str) -> Checkpoint | None:
    """The checkpoint at `path`, or None when there is none; PipelineError when it belongs to another run."""
    if not path.is_file():
        return None
    try:
        checkpoint = Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    except (RuntimeError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise PipelineError(f"{path} is not a checkpoint of this program; remove it to start anew") from error
    if checkpoint.fingerprint != fingerprint:
        raise PipelineError(f"{path} was made with other data, another shape or settings; remove it to start anew")
    return checkpoint


def random_state() -> dict[str, Any]:
    """The state of torch's generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore the state of torch's generators."""
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
