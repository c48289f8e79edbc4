"""transformers' Trainer for blocks of rows: its loss with a teacher, its optimiser, and the figures that it logs.

Trainer brings the loop, the schedule, gradient accumulation, checkpoints and their resumption, TensorBoard, and
several processes: FSDP2 on GPUs, replicas on CPUs.
"""

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel, Trainer, TrainingArguments

from draft_model.core import PipelineError, Preset
from draft_model.data.shards import IDS, LIKELY, LOGPROBS, MIDDLE, ROW_TOKENS
from draft_model.training.losses import (
    MuonWithAdamW,
    block_losses,
    divergences,
    label_divergences,
    next_token_logits,
)
from draft_model.training.plan import device_name, known_flops
from draft_model.training.vocabulary import CutVocabulary

TENSOR_TYPES = {IDS: np.int64, MIDDLE: np.bool_, LIKELY: np.int64, LOGPROBS: np.float32}


def collate(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """A batch is one block: ids and marks, (rows, row_tokens), and its labels, if any, (rows, row_tokens, labels)."""
    (block,) = blocks
    row_tokens, num_tokens = int(block[ROW_TOKENS]), len(block[IDS])
    batch = {
        name: torch.from_numpy(np.array(block[name], kind)) for name, kind in TENSOR_TYPES.items() if name in block
    }
    plain, labels = (-1, row_tokens), (-1, row_tokens, len(block.get(LIKELY, ())) // num_tokens)
    return {name: value.view(labels if name in {LIKELY, LOGPROBS} else plain) for name, value in batch.items()}


def make_arguments(
    preset: Preset, block_tokens: int, out: Path, *, checkpoint_steps: int, log_steps: int, is_compiled: bool = False
) -> TrainingArguments:  # fmt: skip
    """Trainer's settings for a preset; PipelineError when a step does not divide into blocks and processes."""
    has_gpu, num_processes = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", "1"))
    num_blocks, rest = divmod(preset.batch_tokens, block_tokens)
    if rest or not num_blocks or num_blocks % num_processes:
        raise PipelineError(
            f"a step of {preset.batch_tokens:,} tokens does not divide into blocks of {block_tokens:,} for "
            f"{num_processes} processes; make the data with another --block-tokens or start another number"
        )
    decay = {"num_decay_steps": round(preset.num_steps * (1.0 - preset.decay_from)), "decay_type": "linear"}
    arguments = TrainingArguments(
        output_dir=str(out), max_steps=preset.num_steps, seed=preset.seed, bf16=True, torch_compile=is_compiled,
        per_device_train_batch_size=1, gradient_accumulation_steps=num_blocks // num_processes,
        remove_unused_columns=False, max_grad_norm=1.0, warmup_steps=preset.warmup_steps,
        lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=decay,
        save_steps=checkpoint_steps, save_total_limit=2, logging_steps=log_steps, logging_nan_inf_filter=False,
        report_to="tensorboard", disable_tqdm=not sys.stderr.isatty(), use_cpu=not has_gpu,
        dataloader_pin_memory=has_gpu, ddp_backend="gloo" if num_processes > 1 and not has_gpu else None,
        # accelerate shards on accelerators only; processes on CPUs hold whole copies.
        fsdp="full_shard auto_wrap" if num_processes > 1 and has_gpu else None,
    )  # fmt: skip
    arguments._n_gpu = min(1, arguments.n_gpu)  # One process uses one GPU, also where it sees several.
    return arguments


class BlockTrainer(Trainer):
    """Trains a model on blocks, with a teacher or the labels of one if there are any; `mix` is its share in the loss.

    With a `vocabulary` the model knows the cut one. Logs the losses in nats per token, tokens a second, and on a known
    GPU the MFU: the share of the devices' peak that goes into the model (the teacher's operations are not counted).
    """

    def __init__(
        self, model: PreTrainedModel, arguments: TrainingArguments, data: Any, preset: Preset,  # noqa: ANN401 - datasets has no types
        teacher: PreTrainedModel | None = None, mix: float = 0.0, vocabulary: CutVocabulary | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, arguments, data_collator=collate, train_dataset=data)
        self.model_accepts_loss_kwargs = False  # The loss is a mean over a block, and blocks are of one size.
        self._fresh, self._preset, self._mix, self._vocabulary = model, preset, mix, vocabulary
        self._teacher = self._placed(teacher) if teacher else None
        self._sums: Counter[str] = Counter()
        self._logged_at_s, self._logged_step = time.monotonic(), 0

    def _placed(self, teacher: PreTrainedModel) -> PreTrainedModel:
        """The teacher on the device, each layer sharded over the GPUs of several: none needs memory for all of it."""
        if self.is_fsdp_enabled:
            kinds = set(teacher._no_split_modules or ())  # Every family names the class of its layers here.
            for module in [one for one in teacher.modules() if type(one).__name__ in kinds]:
                fully_shard(module)
            fully_shard(teacher)
        else:
            teacher.to(self.args.device)  # type: ignore[arg-type]
        return teacher

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Muon and AdamW, as one."""
        self.optimizer = self.optimizer or MuonWithAdamW(model or self._fresh, self._preset)
        return self.optimizer

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Tensor], *_: object, **__: object) -> Tensor:
        """The mixed loss of a block; PipelineError when it is not finite."""
        ids = self._vocabulary.cut(inputs[IDS]) if self._vocabulary else inputs[IDS]
        logits = next_token_logits(model, ids)
        divergence = self._divergence(logits, inputs)
        losses = block_losses(logits, ids, inputs[MIDDLE], divergence, self._mix)
        if not math.isfinite(float(losses.mixed.detach())):
            raise PipelineError(
                f"the loss is not finite at step {self.state.global_step + 1}; the checkpoints are intact: train with "
                "lower rates or look at the data"
            )
        self._sums.update({"text_loss": float(losses.text), "middle_loss": float(losses.middle)})
        self._sums.update({"divergence": float(losses.divergence)} if divergence is not None else {})
        self._sums.update({
            "blocks": 1, "flops": self._preset.shape.flops_per_token(ids.shape[1]) * ids.numel()
        })  # fmt: skip
        return losses.mixed

    def _divergence(self, logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """The divergence from the teacher or the labels, None without either."""
        if self._teacher is not None:
            with torch.no_grad():
                theirs = next_token_logits(self._teacher, inputs[IDS])
            return divergences(logits, theirs)
        if LIKELY not in inputs:
            return None
        likely, logprobs = (inputs[name][:, :-1].flatten(0, 1) for name in (LIKELY, LOGPROBS))
        if self._vocabulary:
            likely, logprobs = self._vocabulary.cut_labels(likely, logprobs)
        return label_divergences(logits, likely, logprobs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add this process's losses and the speed since the last record."""
        if blocks := self._sums.pop("blocks", 0):
            flops = self._sums.pop("flops")
            logs |= {name: total / blocks for name, total in self._sums.items()}
            took_s, steps = time.monotonic() - self._logged_at_s, self.state.global_step - self._logged_step
            logs["tokens_per_s"] = steps * self._preset.batch_tokens / took_s
            peak = known_flops(device_name())
            logs |= {"mfu": flops / took_s / peak} if peak else {}
        self._sums.clear()
        self._logged_at_s, self._logged_step = time.monotonic(), self.state.global_step
        super().log(logs, start_time)
