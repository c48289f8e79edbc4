"""The state of a run: how much of the budget is spent, and checkpoints.

The budget is a number of steps, or minutes of active time: the sum of step durations, each counted as at most a few
times the recent median. So a process that is paused for ten minutes spends one step, and keeps its learning rate decay.
A checkpoint has all state that a run needs to resume exactly, in one file that is replaced atomically.
"""

import pickle
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from draft_model.core import PipelineError, replacing_file

MAX_STEP_OVER_MEDIAN = 4.0
RECENT_STEPS = 32


@dataclass
class Budget:
    """The budget in minutes or in steps, and the part that is spent."""

    minutes: float | None = None
    steps: int | None = None
    active_s: float = 0.0
    num_steps: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("give minutes or steps, one of them")

    def spend_step(self, duration_s: float) -> None:
        """Count one step that took `duration_s` on the clock."""
        if self._recent:
            duration_s = min(duration_s, MAX_STEP_OVER_MEDIAN * median(self._recent))
        self._recent.append(duration_s)
        self.active_s += duration_s
        self.num_steps += 1

    @property
    def progress(self) -> float:
        """The share that is spent, 0 to 1."""
        if self.steps is not None:
            return min(1.0, self.num_steps / self.steps) if self.steps else 1.0
        return min(1.0, self.active_s / (60.0 * self.minutes)) if self.minutes else 1.0

    @property
    def left_s(self) -> float:
        """Active seconds until the budget is spent, at the pace so far."""
        progress = self.progress
        return self.active_s * (1.0 - progress) / progress if progress else 0.0


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
