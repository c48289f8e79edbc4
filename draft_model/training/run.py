"""One training run in one folder: checkpoint, records, and at the end the model in the Hugging Face layout.

    checkpoint.pt  run.json  metrics.jsonl  tensorboard/  loss.png  model/

After an interruption the same call continues. Under torchrun every process makes the call.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from rich.console import Console
from transformers import LlamaForCausalLM, PreTrainedModel

from draft_model.core import PipelineError, Preset, file_digest, locked, weights_digest, write_atomically
from draft_model.data.shards import TOKENIZER, BlockSource
from draft_model.data.tokenizer import check_same_vocabulary, load_tokenizer
from draft_model.models.network import export_model, load_model, read_config
from draft_model.training.flops import peak_flops
from draft_model.training.optim import Teacher
from draft_model.training.record import recording, watching
from draft_model.training.state import Budget
from draft_model.training.trainer import (
    CHECKPOINT_EVERY_S,
    ProgressObserver,
    SavePoint,
    Trainer,
    TrainResult,
    run_fingerprint,
)
from draft_model.training.world import World

CHECKPOINT = "checkpoint.pt"
LOCK = ".lock"
MODEL = "model"
RUN = "run.json"
MIX = 0.7


@dataclass(frozen=True)
class Distillation:
    """The target to learn from, and the share of its divergence in the loss, 0 to 1."""

    teacher: Path
    mix: float = MIX


def fit_preset(preset: Preset, data: Path, target: Path | None = None) -> Preset:
    """The preset with as many embeddings as its target, which may be padded; else as the data's vocabulary.

    vLLM serves a draft only with a target of the same `vocab_size`.
    """
    target_config = read_config(target) if target else {}
    vocab_size = int(target_config.get("vocab_size", BlockSource(data, 0).manifest.vocab_size))
    return replace(preset, shape=replace(preset.shape, vocab_size=vocab_size))


def train(
    preset: Preset,
    data: Path,
    out: Path,
    budget: Budget,
    world: World,
    console: Console,
    *,
    start_from: Path | None = None,
    distillation: Distillation | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> TrainResult:
    """Train to the end of the budget, from the checkpoint in `out` if there is one, and write `out/model`.

    A new run starts with layers of the model `start_from`, or at random. Raises PipelineError for a loss that is not
    finite, a disk that refuses, missing data, a teacher or start with another vocabulary, a start of other widths or of
    another family, a checkpoint of another run, or a run that another process trains.
    """
    preset = fit_preset(preset, data, distillation.teacher if distillation else start_from)
    source = BlockSource(data, preset.train.seed)
    teacher = _load_teacher(distillation, data, world) if distillation else None
    start = _load_start(start_from, data) if start_from else None
    taught = f"{weights_digest(distillation.teacher)}:{distillation.mix}" if distillation else ""
    begun = f" from {weights_digest(start_from)}" if start_from else ""
    fingerprint = run_fingerprint(preset, source.manifest.fingerprint, taught + begun)
    saved = SavePoint(out / CHECKPOINT, fingerprint, checkpoint_every_s)
    peak = peak_flops(world.device)
    with _alone(out, world):
        with ExitStack() as stack:
            watchers: list[ProgressObserver] = []
            if world.is_main:
                watchers = [stack.enter_context(recording(out)), stack.enter_context(watching(console, preset.name))]
            trainer = Trainer(preset, source, budget, saved, world, start=start, teacher=teacher, peak_flops=peak)
            result = trainer.run(*watchers)
        if world.is_main:
            _finish(preset, data, out, result)
    world.wait()
    return result


@contextmanager
def _alone(out: Path, world: World) -> Iterator[None]:
    """Lock the folder against other runs. The main process holds the lock: the others may be on other machines."""
    with ExitStack() as held:
        refusal = None
        if world.is_main:
            try:
                held.enter_context(locked(out / LOCK, f"the run in {out}"))
            except PipelineError as error:
                refusal = error
        refusal = world.broadcast(refusal)  # All processes must know the refusal, or the others wait forever.
        if refusal:
            raise refusal
        yield


def _load_teacher(distillation: Distillation, data: Path, world: World) -> Teacher:
    # Bfloat16 and sharded on GPUs: a 13B teacher in float32 does not fit beside a draft.
    dtype = torch.float32 if world.device == "cpu" else torch.bfloat16
    return Teacher(world.shard(_load_same_vocabulary(distillation.teacher, data, dtype)), distillation.mix)


def _load_start(folder: Path, data: Path) -> LlamaForCausalLM:
    family = read_config(folder).get("model_type")
    if family != "llama":
        raise PipelineError(f"a model to start from must be a Llama, not {family}: its layers become the draft's")
    return cast("LlamaForCausalLM", _load_same_vocabulary(folder, data))


def _load_same_vocabulary(folder: Path, data: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    check_same_vocabulary(data / TOKENIZER, folder)
    return load_model(folder, dtype)


def _finish(preset: Preset, data: Path, out: Path, result: TrainResult) -> None:
    outcome = {name: getattr(result, name) for name in ("num_steps", "num_tokens", "active_s")}
    made = f"{result.num_tokens:,} tokens in {result.num_steps:,} steps, data {file_digest(data / 'data.json')}."
    card = f"# {preset.name}\n\n{made}\n"
    export_model(result.weights, preset.shape, load_tokenizer(data / TOKENIZER), card, out / MODEL)
    write_atomically(out / RUN, (json.dumps({"preset": preset.name, **outcome}, indent=1) + "\n").encode())
