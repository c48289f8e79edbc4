"""The training loop: batches by step number in, weights and checkpoints out. It knows no corpus or command line."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from transformers import LlamaForCausalLM

from draft_model.budget import Budget
from draft_model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from draft_model.data import Batch, BatchSource
from draft_model.model import make_model, token_losses
from draft_model.optim import Optimiser, learning_rate_scale
from draft_model.presets import Preset

CHECKPOINT_EVERY_S = 180.0


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every step; losses are nats per token of that step's batch."""

    step: int
    share: float
    loss: float
    middle_loss: float
    num_tokens: int
    tokens_per_s: float
    left_s: float


class Watcher(Protocol):
    """Shows a run's progress."""

    def step(self, progress: Progress) -> None:
        """Called after every optimiser step."""
        ...


@dataclass(frozen=True)
class SavePoint:
    """Where a run keeps its checkpoint, and the fingerprint that it must carry."""

    path: Path
    fingerprint: str


@dataclass(frozen=True)
class TrainResult:
    """A trained model (float32) and what it took."""

    model: LlamaForCausalLM
    num_steps: int
    num_tokens: int
    active_s: float


def run_fingerprint(preset: Preset, vocab: str, data: str) -> str:
    """A name for everything that must be the same for a checkpoint to go on; the budget may change between runs."""
    parts = (preset.name, preset.shape, {**vars(preset.train), "minutes": None}, vocab, data)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Trainer:
    """One model, its optimiser and its budget; `run` goes on until the budget is spent."""

    def __init__(
        self, preset: Preset, source: BatchSource, budget: Budget, saved: SavePoint,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._preset = preset
        self._source = source
        self._budget = budget
        self._saved = saved
        self._clock = clock
        self._model = make_model(preset.shape, preset.train.seed)
        self._optimiser = Optimiser(self._model, preset.train)
        self._num_tokens = 0
        self._resume()

    def run(self, watcher: Watcher) -> TrainResult:
        """Train to the end of the budget, checkpoint on the way and at the end."""
        saved_at_s = self._clock()
        while self._budget.progress < 1.0:
            started_s = self._clock()
            scale = learning_rate_scale(self._budget.progress, self._budget.num_steps, self._preset.train)
            batch = self._source.batch(self._budget.num_steps)
            loss, middle_loss = self._step(batch, scale)
            now_s = self._clock()
            self._budget.spend_step(now_s - started_s)
            self._num_tokens += batch.ids.numel()
            watcher.step(self._progress(loss, middle_loss, batch.ids.numel() / max(1e-9, now_s - started_s)))
            if now_s - saved_at_s > CHECKPOINT_EVERY_S:
                self._save()
                saved_at_s = self._clock()
        self._save()
        return TrainResult(self._model, self._budget.num_steps, self._num_tokens, self._budget.active_s)

    def _step(self, batch: Batch, scale: float) -> tuple[float, float]:
        settings = self._preset.train
        rows = max(1, settings.micro_tokens // batch.ids.shape[1])
        ids, is_middle = torch.split(batch.ids, rows), torch.split(batch.is_middle, rows)
        total, middle_total = 0.0, 0.0
        for micro_ids, micro_middle in zip(ids, is_middle, strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses = token_losses(self._model, micro_ids)
            (losses.mean() / len(ids)).backward()  # type: ignore[no-untyped-call]
            plain = losses.detach()
            total += float(plain.mean()) / len(ids)
            middle_total += float(plain[micro_middle[:, 1:]].sum() / micro_middle[:, 1:].sum().clamp(min=1)) / len(ids)
        self._optimiser.step(scale)
        return total, middle_total

    def _progress(self, loss: float, middle_loss: float, tokens_per_s: float) -> Progress:
        budget = self._budget
        return Progress(
            budget.num_steps, budget.progress, loss, middle_loss, self._num_tokens, tokens_per_s, budget.left_s
        )

    def _save(self) -> None:
        budget = self._budget
        save_checkpoint(
            Checkpoint(
                self._saved.fingerprint, budget.num_steps, budget.active_s, self._num_tokens,
                self._model.state_dict(), self._optimiser.state_dict(),
            ),
            self._saved.path,
        )  # fmt: skip

    def _resume(self) -> None:
        checkpoint = load_checkpoint(self._saved.path, self._saved.fingerprint)
        if checkpoint is None:
            return
        self._model.load_state_dict(checkpoint.model)
        self._optimiser.load_state_dict(checkpoint.optimiser)
        self._num_tokens = checkpoint.num_tokens
        self._budget.num_steps, self._budget.active_s = checkpoint.step, checkpoint.active_s
