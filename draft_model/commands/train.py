"""`draft-model train`, `draft-model plan` and `draft-model build-embedded`."""

import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from draft_model.commands import COUNT, FOLDER, SHARE, WORK, counting, json_option, number, show
from draft_model.commands.corpus import collect_embedded
from draft_model.core import PRESETS, PipelineError, check_replaceable, find_preset
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.filters import DEFAULT_SUFFIXES, Rules
from draft_model.corpus.readers import read_repositories
from draft_model.corpus.store import MANIFEST
from draft_model.data.shards import DataSettings, is_labelled
from draft_model.models import CONFIG
from draft_model.pair import BuildSettings, build_pair
from draft_model.training.plan import DEFAULT_UTILISATION, GPUS, make_plan
from draft_model.training.run import CHECKPOINT_STEPS, MIX, MODEL, Lineage
from draft_model.training.run import train as run_training

KNOWN = ", ".join(sorted(PRESETS))


@click.command()
@click.option("--preset", required=True, help=f"One of {KNOWN}.")
@click.option("--data", "data_folder", type=FOLDER, default=WORK / "data", help="From `draft-model data`.")
@click.option("--out", type=FOLDER, required=True, help="Folder of the run: checkpoints, TensorBoard files, the model.")
@click.option("--tokens", type=number, help="Training budget, such as 50e9.  [default: the preset's]")
@click.option("--batch-tokens", type=number, help="Tokens a step.  [default: the preset's]")
@click.option(
    "--start-from", type=FOLDER,
    help="Start with layers of this model, which has more of them and the same widths: the embedded draft's target.",
)  # fmt: skip
@click.option(
    "--teacher", type=FOLDER, help="Learn this target's distribution too; data from `draft-model label` needs none."
)
@click.option("--mix", type=SHARE, help=f"Share of the teacher, or of the labels, in the loss.  [default: {MIX}]")
@click.option(
    "--vocabulary", type=click.IntRange(min=2),
    help="Tell only this many tokens apart, the most frequent of the data: for a small draft of a large vocabulary. "
    "vLLM serves it all the same, with greedy drafts.  [default: all]",
)  # fmt: skip
@click.option("--checkpoint-steps", type=COUNT, default=CHECKPOINT_STEPS, help="From a checkpoint to the next one.")
@click.option("--compile", "is_compiled", is_flag=True, help="Use torch.compile, which needs a C++ compiler.")
def train(
    *, preset: str, data_folder: Path, out: Path, tokens: int | None, batch_tokens: int | None,
    start_from: Path | None, teacher: Path | None, mix: float | None, vocabulary: int | None, checkpoint_steps: int,
    is_compiled: bool,
) -> None:  # fmt: skip
    """Train a preset. After an interruption the same command continues from its last checkpoint.

    \b
    Examples:
      draft-model train --preset embedded-draft --out work/embedded/draft --tokens 30e6
      draft-model train --preset embedded-draft --out work/embedded/distilled --teacher work/embedded/target/model \\
          --start-from work/embedded/target/model
      draft-model train --preset embedded-draft --data labelled --out run --tokens 8e6 --vocabulary 16000
      torchrun --nproc-per-node 8 -m draft_model train --preset draft-1b --data data --out run --tokens 50e9
      tensorboard --logdir run
    """
    if mix is not None and teacher is None and not is_labelled(data_folder):
        raise click.UsageError("--mix has no effect without --teacher or data from `draft-model label`")
    given: dict[str, Any] = {
        name: value for name, value in (("num_tokens", tokens), ("batch_tokens", batch_tokens)) if value
    }
    chosen = replace(find_preset(preset), **given)
    lineage, is_first = Lineage(start_from, teacher, MIX if mix is None else mix), os.environ.get("RANK", "0") == "0"
    with counting("training", has_bar=False) if is_first else nullcontext():
        run_training(
            chosen, data_folder, out, lineage, vocabulary=vocabulary, is_compiled=is_compiled,
            checkpoint_steps=checkpoint_steps,
        )  # fmt: skip
    if is_first:
        click.echo(f"{out / MODEL}: {chosen.num_steps * chosen.batch_tokens:,} tokens in {chosen.num_steps:,} steps")


@click.command()
@click.option("--preset", default="draft-1b", help=f"One of {KNOWN}.")
@click.option("--gpus", type=COUNT, required=True)
@click.option("--gpu", type=click.Choice(sorted(GPUS)), required=True)
@click.option("--tokens", type=number, required=True)
@click.option(
    "--utilisation", type=click.FloatRange(0.01, 1), default=DEFAULT_UTILISATION,
    help="Share of the peak: the MFU that `train` logs on your machines.",
)  # fmt: skip
@click.option(
    "--teacher-parameters", type=number,
    help="Count a teacher of this size, such as 13e9: a forward pass a token.  [default: no teacher]",
)  # fmt: skip
@json_option
def plan(
    *, preset: str, gpus: int, gpu: str, tokens: int, utilisation: float, teacher_parameters: int | None, as_json: bool
) -> None:
    """Estimate days, GPU hours, cost and memory of a training run.

    \b
    Examples:
      draft-model plan --gpus 8 --gpu a100 --tokens 50e9
      draft-model plan --gpus 8 --gpu h100 --tokens 50e9 --utilisation 0.42 --teacher-parameters 13e9
    """
    made = make_plan(find_preset(preset), tokens, gpu, gpus, utilisation, teacher_parameters or 0)
    if as_json:
        show(asdict(made), as_json=True)
    else:
        click.echo(made)


@click.command("build-embedded")
@click.option("--work", type=FOLDER, default=WORK, help="Where everything on the way is kept.")
@click.option("--repositories", type=FOLDER, help="Learn from the folders in this folder instead.")
@click.option("--hold-out", multiple=True, metavar="REPOSITORY", help="Hold this one out.")
@click.option("--target-tokens", type=number, help="Training budget of the target.  [default: the preset's]")
@click.option("--draft-tokens", type=number, help="Training budget of the draft.  [default: the preset's]")
@click.option("--mix", type=SHARE, default=MIX, help="The target's share in the draft's loss.")
@click.option(
    "--generated", type=click.IntRange(min=0), default=12_000,
    help="Cursors at which the target writes what its draft learns from.",
)  # fmt: skip
@click.option("--target-out", type=FOLDER, default=Path("target_model/embedded-bf16"))
@click.option("--draft-out", type=FOLDER, default=Path("draft_model/embedded"))
def build_embedded(
    *, work: Path, repositories: Path | None, hold_out: tuple[str, ...], target_tokens: int | None,
    draft_tokens: int | None, mix: float, generated: int, target_out: Path, draft_out: Path,
) -> None:  # fmt: skip
    """Build both embedded models: corpus, tokenizer, data, target, draft, figures, cards.

    Parts that --work has are used, and training continues from its checkpoint.

    \b
    Example:
      draft-model build-embedded --target-tokens 42e6 --draft-tokens 30e6
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise PipelineError("the embedded pair is built by one process, which uses one GPU: start it without torchrun")
    for folder in (target_out, draft_out):
        check_replaceable(folder, CONFIG)
    if (work / "corpus" / MANIFEST).is_file():
        pass
    elif repositories is None:
        collect_embedded(work / "corpus", hold_out)
    else:
        settings = CorpusSettings(Rules(is_shortened=True), held_out=hold_out)
        collect_corpus(read_repositories(repositories, DEFAULT_SUFFIXES), work / "corpus", settings)
    target, draft = (
        replace(preset, num_tokens=tokens or preset.num_tokens)
        for preset, tokens in ((PRESETS["embedded-target"], target_tokens), (PRESETS["embedded-draft"], draft_tokens))
    )
    data = DataSettings(max(target.num_tokens, draft.num_tokens))
    figures = build_pair(work, BuildSettings(target, draft, data, mix, generated), target_out, draft_out, counting)
    for model in (figures.target, figures.draft):
        size, bits = f"{model.num_parameters:,} parameters", f"{model.evaluation.bits_per_byte:.3f} bits per byte"
        click.echo(f"{model.preset.name}: {size}, {bits}")
    click.echo(f"accepted at K = 4, greedy, offline: {figures.pair.greedy.acceptance_by_length[4]:.1%}")
