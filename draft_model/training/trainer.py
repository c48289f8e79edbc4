"""The training loop with its budget and checkpoints: reads blocks by step number, writes weights and checkpoints.

The budget is a number of steps, or minutes of active time: the sum of step durations, each counted as at most a few
times the recent median. So a process that is paused for ten minutes spends one step, and keeps its learning rate decay.
A checkpoint has all state that a run needs to resume exactly, in one file that is replaced atomically.

It replaces transformers' Trainer, which supports neither two optimisers with one learning rate over a budget of active
minutes, nor a data position that is a step number.
"""

import hashlib
import math
import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from completion_server.core.files import remove_unfinished
from draft_model.core import PipelineError, Preset, replacing_file
from draft_model.data.shards import BlockSource, TokenBlock
from draft_model.models import make_model, make_pruned
from draft_model.training.optim import Optimiser, Teacher, block_losses, learning_rate_scale, next_token_logits
from draft_model.training.world import World

CHECKPOINT_EVERY_S = 180.0
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


@dataclass(frozen=True)
class TrainingProgress:
    """The state after a step. Losses and `divergence` are nats per token of that step.

    `utilisation` is the share of the devices' peak that went into the model, 0 to 1; 0 if the peak is not known.
    """

    step: int
    share: float
    loss: float
    middle_loss: float
    divergence: float
    grad_norm: float
    rate_scale: float
    num_tokens: int
    tokens_per_s: float
    utilisation: float
    left_s: float


class ProgressObserver(Protocol):
    """Shows or records a run's progress."""

    def begin(self, step: int) -> None:
        """Called once before the first step, with the number of finished steps."""
        ...

    def step(self, progress: TrainingProgress) -> None:
        """Called after every optimiser step."""
        ...


@dataclass(frozen=True)
class SavePoint:
    """The checkpoint's path, the fingerprint that it must have, and the interval of writing it."""

    path: Path
    fingerprint: str
    every_s: float = CHECKPOINT_EVERY_S


@dataclass(frozen=True)
class TrainResult:
    """A trained model's weights (float32, on the main process only), and the budget that it spent."""

    weights: dict[str, Tensor]
    num_steps: int
    num_tokens: int
    active_s: float


def run_fingerprint(preset: Preset, data: str, learnt_from: str = "") -> str:
    """A digest of everything that must be equal to resume from a checkpoint; the budget may differ."""
    parts = (preset.name, preset.shape, {**vars(preset.train), "minutes": None}, data, learnt_from)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Trainer:
    """Trains one model until its budget is spent."""

    def __init__(
        self, preset: Preset, source: BlockSource, budget: Budget, saved: SavePoint, world: World,
        *, start: LlamaForCausalLM | None = None, teacher: Teacher | None = None, peak_flops: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Make the model, from the layers of `start` if there is one, or take it from the checkpoint.

        Raises PipelineError when the step does not divide into blocks and processes, the checkpoint is of another run,
        or `start` has other widths.
        """
        self._preset = preset
        self._source = source
        self._budget = budget
        self._saved = saved
        self._world = world
        self._teacher = teacher
        self._peak_flops = peak_flops * world.size
        self._clock = clock
        self._num_blocks = _blocks_a_step(preset.train.batch_tokens, source.block_tokens, world.size)
        fresh = make_pruned(preset.shape, start) if start else make_model(preset.shape, preset.train.seed)
        self._model: LlamaForCausalLM = world.shard(fresh)
        self._optimiser = Optimiser(self._model, preset.train, world)
        self._losses = world.compiled(block_losses)
        self._num_tokens = 0
        self._saved_step = 0
        self._resume()

    def run(self, *watchers: ProgressObserver) -> TrainResult:
        """Train to the end of the budget, writing checkpoints at intervals and at the end."""
        budget = self._budget
        for watcher in watchers:
            watcher.begin(budget.num_steps)
        saved_at_s = self._clock()
        while budget.progress < 1.0:
            begun_s = self._clock()
            scale = learning_rate_scale(budget.progress, budget.num_steps, self._preset.train)
            losses, flops = self._accumulate()
            norm = self._optimiser.step(scale)
            now_s = self._clock()
            is_due = float(now_s - saved_at_s > self._saved.every_s) if self._world.is_main else 0.0
            *means, took_s, due = self._world.mean([*losses, now_s - begun_s, is_due])
            self._check(means[0], norm)
            budget.spend_step(took_s)
            self._num_tokens += self._preset.train.batch_tokens
            progress = self._progress(means, norm, scale, max(1e-9, took_s), flops)
            for watcher in watchers:
                watcher.step(progress)
            if due > 0:
                self._save()
                saved_at_s = self._clock()
        self._save()
        weights = self._world.model_state(self._model)
        return TrainResult(weights, budget.num_steps, self._num_tokens, budget.active_s)

    def _accumulate(self) -> tuple[list[float], float]:
        """Accumulate the gradients of this step's blocks; return mean losses, and the operations of all processes."""
        world, first = self._world, self._budget.num_steps * self._num_blocks
        places = range(first + world.rank, first + self._num_blocks, world.size)
        totals, flops = [0.0, 0.0, 0.0], 0.0
        for place in places:
            block = self._source.block(place)
            found = self._learn(block, len(places))
            totals = [total + part / len(places) for total, part in zip(totals, found, strict=True)]
            flops += self._preset.shape.flops_per_token(block.ids.shape[1]) * block.ids.numel() * world.size
        return totals, flops

    def _learn(self, block: TokenBlock, num_blocks: int) -> tuple[float, float, float]:
        """Add one block's gradient; return its loss, its loss inside completions, its divergence from the teacher."""
        ids = block.ids.to(self._world.device)
        is_middle = block.is_middle.to(self._world.device)
        with torch.autocast(torch.device(self._world.device).type, dtype=torch.bfloat16):
            logits = next_token_logits(self._model, ids)
            theirs = self._teacher.logits(ids) if self._teacher else None
        mix = self._teacher.mix if self._teacher else 0.0
        losses = self._losses(logits, ids, is_middle, theirs, mix)
        (losses.mixed / num_blocks).backward()  # type: ignore[no-untyped-call]
        return float(losses.text), float(losses.middle), float(losses.divergence)

    def _check(self, loss: float, norm: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise PipelineError(
                f"the loss is {loss} and the gradient {norm} at step {self._budget.num_steps + 1}; the checkpoint "
                f"of step {self._saved_step} is intact: train with lower rates or look at the data"
            )

    def _progress(
        self, losses: list[float], norm: float, scale: float, took_s: float, flops: float
    ) -> TrainingProgress:
        budget = self._budget
        utilisation = flops / took_s / self._peak_flops if self._peak_flops else 0.0
        return TrainingProgress(
            budget.num_steps, budget.progress, losses[0], losses[1], losses[2], norm, scale, self._num_tokens,
            self._preset.train.batch_tokens / took_s, utilisation, budget.left_s,
        )  # fmt: skip

    def _save(self) -> None:
        budget = self._budget
        model, optimiser = self._world.model_state(self._model), self._optimiser.state_dict()
        if self._world.is_main:
            save_checkpoint(
                Checkpoint(
                    self._saved.fingerprint, budget.num_steps, budget.active_s, self._num_tokens, model, optimiser,
                    random_state(),
                ),
                self._saved.path,
            )  # fmt: skip
        self._saved_step = budget.num_steps
        self._world.wait()

    def _resume(self) -> None:
        # Only the main process reads the file: the others may be on machines that do not have it.
        checkpoint, refusal = None, None
        if self._world.is_main:
            remove_unfinished(self._saved.path)
            try:
                checkpoint = load_checkpoint(self._saved.path, self._saved.fingerprint)
            except PipelineError as error:
                refusal = error  # All processes must know the refusal, or the others wait forever.
        received = self._world.broadcast(refusal or (checkpoint and replace(checkpoint, model={}, optimiser={})))
        if isinstance(received, PipelineError):
            raise received
        if received is None:
            return
        self._world.load_model_state(self._model, checkpoint.model if checkpoint else {})
        self._optimiser.load_state_dict(checkpoint.optimiser if checkpoint else {})
        restore_random_state(received.random)
        self._num_tokens, self._saved_step = received.num_tokens, received.step
        self._budget.num_steps, self._budget.active_s = received.step, received.active_s


def _blocks_a_step(batch_tokens: int, block_tokens: int, num_processes: int) -> int:
    num_blocks, rest = divmod(batch_tokens, block_tokens)
    if rest or not num_blocks or num_blocks % num_processes:
        raise PipelineError(
            f"a step of {batch_tokens:,} tokens does not divide into blocks of {block_tokens:,} for {num_processes} "
            "processes; make the data with another --block-tokens or start another number of processes"
        )
    return num_blocks
