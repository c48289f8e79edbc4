"""`draft-model train` and `draft-model plan`."""

from dataclasses import asdict, replace
from pathlib import Path

import click

from draft_model.commands.common import (
    CONSOLE,
    FOLDER,
    WORK,
    Number,
    compile_option,
    json_option,
    plain_errors,
    refuse_without,
    show,
)
from draft_model.core.presets import PRESETS, Preset, find_preset
from draft_model.training.budget import Budget
from draft_model.training.flops import PEAK_FLOPS
from draft_model.training.plan import (
    ASSUMED,
    DEFAULT_UTILISATION,
    Utilisation,
    describe_plan,
    make_plan,
    measured_utilisation,
)
from draft_model.training.run import MIX, Distillation
from draft_model.training.run import train as run_training
from draft_model.training.trainer import CHECKPOINT_EVERY_S
from draft_model.training.world import joined_world

KNOWN = ", ".join(sorted(PRESETS))
preset_option = click.option("--preset", required=True, help=f"One of {KNOWN}.")


def chosen_budget(preset: Preset, minutes: float | None, steps: int | None, tokens: int | None) -> Budget:
    """The given budget, or the preset's minutes; UsageError when several are given."""
    given = [value for value in (minutes, steps, tokens) if value is not None]
    if len(given) > 1:
        raise click.UsageError("give --minutes, --steps or --tokens, one of them")
    if tokens is not None:
        return Budget(steps=-(-tokens // preset.train.batch_tokens))
    return (
        Budget(steps=steps)
        if steps is not None
        else Budget(minutes=preset.train.minutes if minutes is None else minutes)
    )


def chosen_utilisation(share: float | None, run: Path | None) -> Utilisation:
    """The given share, or the one measured in a run, or an assumed one; UsageError when both are given."""
    if share is not None and run is not None:
        raise click.UsageError("give --utilisation or --from-run, one of them")
    if run is not None:
        return measured_utilisation(run)
    return ASSUMED if share is None else Utilisation(share, "given")


@click.command()
@preset_option
@click.option(
    "--data", "data_folder", type=FOLDER, default=WORK / "data", show_default=True, help="From `draft-model data`."
)
@click.option("--out", type=FOLDER, required=True, help="Folder of the run: checkpoint, records, the model.")
@click.option("--minutes", type=click.FloatRange(min=0), default=None, help="Training budget, active minutes.")
@click.option("--steps", type=click.IntRange(min=0), default=None, help="Training budget in steps: repeatable exactly.")
@click.option("--tokens", type=Number(), default=None, help="Training budget in tokens, such as 50e9: repeatable too.")
@click.option("--batch-tokens", type=Number(), default=None, help="Tokens a step.  [default: the preset's]")
@click.option(
    "--start-from", type=FOLDER, default=None,
    help="Start with layers of this model, which has more of them and the same widths: the embedded draft's target.",
)  # fmt: skip
@click.option("--teacher", type=FOLDER, default=None, help="Learn this target's distribution too.")
@click.option(
    "--mix", type=click.FloatRange(0, 1), default=MIX, show_default=True, help="Share of the teacher in the loss."
)
@click.option(
    "--checkpoint-minutes", type=click.FloatRange(min=0), default=CHECKPOINT_EVERY_S / 60, show_default=True,
)  # fmt: skip
@click.option("--seed", type=int, default=None, help="Another seed than the preset's.")
@compile_option
@plain_errors
def train(
    *, preset: str, data_folder: Path, out: Path, minutes: float | None, steps: int | None, tokens: int | None,
    batch_tokens: int | None, start_from: Path | None, teacher: Path | None, mix: float,
    checkpoint_minutes: float, seed: int | None, is_compiled: bool,
) -> None:  # fmt: skip
    """Train a preset. After an interruption the same command continues from its checkpoint.

    \b
    Examples:
      draft-model train --preset embedded-draft --out work/embedded/draft --minutes 60
      draft-model train --preset embedded-draft --out work/embedded/distilled --teacher work/embedded/target/model \\
          --start-from work/embedded/target/model
      torchrun --nproc-per-node 8 -m draft_model train --preset draft-1b --data data --out run --tokens 50e9
    """
    refuse_without("teacher", "mix")
    chosen = find_preset(preset)
    settings = replace(
        chosen.train,
        seed=chosen.train.seed if seed is None else seed,
        batch_tokens=chosen.train.batch_tokens if batch_tokens is None else batch_tokens,
    )
    chosen = replace(chosen, train=settings)
    budget = chosen_budget(chosen, minutes, steps, tokens)
    distillation = Distillation(teacher, mix) if teacher else None
    with joined_world(is_compiled=is_compiled) as world:
        result = run_training(
            chosen, data_folder, out, budget, world, CONSOLE,
            start_from=start_from, distillation=distillation, checkpoint_every_s=checkpoint_minutes * 60,
        )  # fmt: skip
        if world.is_main:
            click.echo(f"{out / 'model'}: {result.num_tokens:,} tokens in {result.num_steps:,} steps")


@click.command()
@click.option("--preset", default="draft-1b", show_default=True, help=f"One of {KNOWN}.")
@click.option("--gpus", type=click.IntRange(min=1), required=True)
@click.option("--gpu", type=click.Choice(sorted(PEAK_FLOPS)), required=True)
@click.option("--tokens", type=Number(), required=True)
@click.option(
    "--utilisation", type=click.FloatRange(0.01, 1), default=None,
    help=f"Share of the peak: the MFU that `train` shows on your machines.  [default: {DEFAULT_UTILISATION}, assumed]",
)  # fmt: skip
@click.option(
    "--from-run", type=FOLDER, default=None,
    help="Instead: the median MFU of this run of `train`, on GPUs of the same kind.",
)  # fmt: skip
@click.option(
    "--teacher-parameters", type=Number(), default=None,
    help="Count a teacher of this size, such as 13e9: a forward pass a token.  [default: no teacher]",
)  # fmt: skip
@click.option(
    "--dollars-per-gpu-hour", type=click.FloatRange(min=0), default=None, help="[default: a rough market price]"
)
@json_option
@plain_errors
def plan(
    *,
    preset: str,
    gpus: int,
    gpu: str,
    tokens: int,
    utilisation: float | None,
    from_run: Path | None,
    teacher_parameters: int | None,
    dollars_per_gpu_hour: float | None,
    as_json: bool,
) -> None:
    """Estimate days, GPU hours, cost and memory of a training run.

    \b
    Examples:
      draft-model plan --gpus 8 --gpu a100 --tokens 50e9
      draft-model plan --gpus 8 --gpu h100 --tokens 50e9 --from-run run --teacher-parameters 13e9
    """
    share = chosen_utilisation(utilisation, from_run)
    made = make_plan(find_preset(preset), tokens, gpu, gpus, share, dollars_per_gpu_hour, teacher_parameters or 0)
    if as_json:
        show(asdict(made), as_json=True)
    else:
        click.echo(describe_plan(made))
