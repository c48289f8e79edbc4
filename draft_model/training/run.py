"""One training run in one folder: Trainer's checkpoints and TensorBoard files, and at the end the model.

    run.json  checkpoint-200/ ...  runs/  model/

After an interruption the same call continues. Under torchrun every process makes the call.
"""

import ctypes
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from draft_model.core import PipelineError, Preset, file_digest, locked, weights_digest, write_atomically
from draft_model.data.shards import MANIFEST, TOKENIZER, is_labelled, load_data, read_manifest
from draft_model.data.tokenizer import check_same_vocabulary, load_tokenizer
from draft_model.models import CONFIG, export_model, load_model, make_model, make_pruned, read_config
from draft_model.training.trainer import BlockTrainer, make_arguments
from draft_model.training.vocabulary import KEPT, CutVocabulary

MODEL = "model"
RUN = "run.json"
MIX = 0.7
CHECKPOINT_STEPS = 200
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt (malloc.h)."""


@dataclass(frozen=True)
class Lineage:
    """The models that a new one learns from: it starts with layers of `start_from` and learns from a `teacher`.

    `mix` is the share of the divergence from the teacher, or from the labels of the data, in the loss, 0 to 1.
    """

    start_from: Path | None = None
    teacher: Path | None = None
    mix: float = MIX


def fit_preset(preset: Preset, data: Path, lineage: Lineage) -> Preset:
    """The preset with as many embeddings as its target, which may be padded; else as the data's vocabulary.

    vLLM serves a draft only with a target of the same `vocab_size`.
    """
    config = read_manifest(data)
    if target := lineage.teacher or (None if is_labelled(data) else lineage.start_from):
        config = read_config(target)
    return replace(preset, shape=replace(preset.shape, vocab_size=int(config["vocab_size"])))


def last_checkpoint(out: Path) -> str | None:
    """The newest checkpoint that is whole: Trainer writes its state last."""
    whole = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.partition("-")[2]))) if whole else None


def train(
    preset: Preset, data: Path, out: Path, lineage: Lineage | None = None, *, vocabulary: int | None = None,
    is_compiled: bool = False, checkpoint_steps: int = CHECKPOINT_STEPS, log_steps: int = 10,
) -> None:  # fmt: skip
    """Train to the end of the preset's budget, from the last checkpoint in `out` if there is one; write `out/model`.

    `vocabulary` is the number of tokens that the model tells apart, as `CutVocabulary`; all when not given, or those of
    the model to start from.

    Raises PipelineError for a loss that is not finite, missing data, a teacher or start with another vocabulary, a
    start of other widths or of another family, a folder of another run, or a run that another process trains; and for
    a cut vocabulary with a teacher, which has the whole one, or of a size that there is not; labels and a teacher.
    """
    lineage = lineage or Lineage()
    if lineage.teacher and is_labelled(data):
        raise PipelineError(f"{data} has labels, and --teacher names {lineage.teacher}: learn from one of them")
    preset, rows = fit_preset(preset, data, lineage), load_data(data)
    if cut := _cut(vocabulary, preset, lineage, rows):
        preset = replace(preset, shape=replace(preset.shape, vocab_size=cut.size))
    block_tokens = read_manifest(data)["settings"]["block_tokens"]
    arguments = make_arguments(
        preset, block_tokens, out, checkpoint_steps=checkpoint_steps, log_steps=log_steps, is_compiled=is_compiled
    )
    record = _record(preset, data, lineage)
    if arguments.process_index:  # The main process holds the lock and writes the records.
        _trained(preset, data, rows, lineage, cut, arguments, None)
        return
    with locked(out / ".lock", f"the run in {out}"):
        earlier = json.loads((out / RUN).read_text(encoding="utf-8")) if (out / RUN).is_file() else record
        if {**earlier, "num_tokens": 0} != {**record, "num_tokens": 0}:
            raise PipelineError(f"{out} is a run with other data, another shape or settings; remove it to start anew")
        if earlier == record and (out / MODEL / CONFIG).is_file():
            return
        write_atomically(out / RUN, (json.dumps(record, indent=1) + "\n").encode())
        _trained(preset, data, rows, lineage, cut, arguments, out / MODEL)


def _cut(size: int | None, preset: Preset, lineage: Lineage, rows: Any) -> CutVocabulary | None:  # noqa: ANN401
    """The cut vocabulary: that of the model to start from, or the data's `size - 1` frequent tokens; None for all."""
    full_size = preset.shape.vocab_size
    started = CutVocabulary.of_model(lineage.start_from, full_size) if lineage.start_from else None
    if started and size not in {None, started.size}:
        raise PipelineError(f"{lineage.start_from} tells {started.size:,} tokens apart, not the {size:,} asked for")
    if (started or size) and lineage.teacher:
        raise PipelineError(
            "a cut vocabulary (--vocabulary) and --teacher: a teacher has the whole one; label the data with it "
            "(`draft-model label`)"
        )
    if started or size is None:
        return started
    if not 1 < size < full_size:
        raise PipelineError(f"a vocabulary of {size:,} tokens can't be cut from one of {full_size:,}")
    return CutVocabulary.of_frequent(rows, size, full_size)


def _record(preset: Preset, data: Path, lineage: Lineage) -> dict[str, Any]:
    """What must be equal to continue a run, but for the number of tokens."""
    start, teacher = (weights_digest(path) if path else "" for path in (lineage.start_from, lineage.teacher))
    is_taught = teacher or is_labelled(data)
    taught = {"start_from": start, "teacher": teacher, "mix": lineage.mix if is_taught else 0.0}
    return {**asdict(preset), "data": file_digest(data / MANIFEST), **taught}


def _trained(
    preset: Preset, data: Path, rows: Any, lineage: Lineage, cut: CutVocabulary | None, arguments: Any,  # noqa: ANN401
    model: Path | None,
) -> None:  # fmt: skip
    """Train; write the folder `model`, on the main process only."""
    if arguments.use_cpu:
        _keep_freed_memory()
    tokenizer = load_tokenizer(data / TOKENIZER)
    start = _load_start(lineage.start_from, data, cut) if lineage.start_from else None
    fresh = make_pruned(preset.shape, start) if start else make_model(preset.shape, preset.seed)
    # Bfloat16 on GPUs: a 13B teacher in float32 does not fit beside a draft.
    dtype = torch.float32 if arguments.use_cpu else torch.bfloat16
    teacher = _load_same_vocabulary(lineage.teacher, data, dtype) if lineage.teacher else None
    trainer = BlockTrainer(fresh, arguments, rows, preset, teacher, lineage.mix, cut)
    trainer.train(resume_from_checkpoint=last_checkpoint(Path(arguments.output_dir)))
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if model is not None:
        weights = {name.removeprefix("_orig_mod."): value for name, value in weights.items()}  # of torch.compile
        card = f"# {preset.name}\n\n{preset.num_tokens:,} tokens in {preset.num_steps:,} steps.\n"
        shape = preset.shape
        if cut:
            weights = cut.expand(weights)
            card += f"\nIt tells {shape.vocab_size:,} tokens apart: for greedy drafts, not for its probabilities.\n"
            shape = replace(shape, vocab_size=cut.full_size)
        export_model(weights, shape, tokenizer, card, model, {KEPT: json.dumps(cut.kept)} if cut else {})


def _keep_freed_memory() -> None:
    """Keep glibc from giving the logits of each block back to the system: mapping them anew took 40% of a step.

    It holds for the rest of the process.
    """
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def _load_start(folder: Path, data: Path, cut: CutVocabulary | None) -> LlamaForCausalLM:
    family = read_config(folder).get("model_type")
    if family != "llama":
        raise PipelineError(f"a model to start from must be a Llama, not {family}: its layers become the draft's")
    start = cast("LlamaForCausalLM", _load_same_vocabulary(folder, data))
    if cut:
        rows = cut.contract(start.model.embed_tokens.weight)
        start.model.embed_tokens.weight = torch.nn.Parameter(rows, requires_grad=False)
        start.config.vocab_size = len(rows)
    return start


def _load_same_vocabulary(folder: Path, data: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    check_same_vocabulary(data / TOKENIZER, folder)
    return load_model(folder, dtype)
