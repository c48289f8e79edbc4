"""`draft-model train`, `draft-model plan` and `draft-model build-embedded`."""

from dataclasses import asdict, replace
from pathlib import Path

import click

from draft_model.commands import (
    CONSOLE,
    FOLDER,
    WORK,
    compile_option,
    json_option,
    number,
    refuse_without,
    show,
)
from draft_model.core import PRESETS, PipelineError, Preset, check_replaceable, find_preset
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.filters import DEFAULT_SUFFIXES, Rules
from draft_model.corpus.readers import HELD_OUT, fetch_wheels, read_embedded_sources, read_repositories
from draft_model.corpus.store import MANIFEST
from draft_model.data.shards import DataSettings
from draft_model.evaluation.held_out import probe_table
from draft_model.models import CONFIG
from draft_model.pair import BuildSettings, Role, build_pair
from draft_model.training.plan import (
    ASSUMED,
    DEFAULT_UTILISATION,
    Utilisation,
    describe_plan,
    make_plan,
    measured_utilisation,
)
from draft_model.training.run import MIX
from draft_model.training.run import train as run_training
from draft_model.training.trainer import CHECKPOINT_EVERY_S, Budget
from draft_model.training.world import GPUS, joined_world, num_processes

KNOWN = ", ".join(sorted(PRESETS))
preset_option = click.option("--preset", required=True, help=f"One of {KNOWN}.")
SHORTENED = Rules(is_shortened=True)


def chosen_preset(name: str, **settings: int | None) -> Preset:
    """The preset called `name`, with the training settings that are given."""
    preset, given = find_preset(name), {key: value for key, value in settings.items() if value is not None}
    return replace(preset, train=replace(preset.train, **given))


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
@click.option("--data", "data_folder", type=FOLDER, default=WORK / "data", help="From `draft-model data`.")
@click.option("--out", type=FOLDER, required=True, help="Folder of the run: checkpoint, records, the model.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Training budget, active minutes.")
@click.option("--steps", type=click.IntRange(min=0), help="Training budget in steps: repeatable exactly.")
@click.option("--tokens", type=number, help="Training budget in tokens, such as 50e9: repeatable too.")
@click.option("--batch-tokens", type=number, help="Tokens a step.  [default: the preset's]")
@click.option(
    "--start-from", type=FOLDER,
    help="Start with layers of this model, which has more of them and the same widths: the embedded draft's target.",
)  # fmt: skip
@click.option("--teacher", type=FOLDER, help="Learn this target's distribution too.")
@click.option("--mix", type=click.FloatRange(0, 1), default=MIX, help="Share of the teacher in the loss.")
@click.option(
    "--checkpoint-minutes", type=click.FloatRange(min=0), default=CHECKPOINT_EVERY_S / 60,
)  # fmt: skip
@click.option("--seed", type=int, help="Another seed than the preset's.")
@compile_option
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
    chosen = chosen_preset(preset, seed=seed, batch_tokens=batch_tokens)
    budget = chosen_budget(chosen, minutes, steps, tokens)
    with joined_world(is_compiled=is_compiled) as world:
        result = run_training(
            chosen, data_folder, out, budget, world, CONSOLE,
            start_from=start_from, teacher=teacher, mix=mix, checkpoint_every_s=checkpoint_minutes * 60,
        )  # fmt: skip
        if world.is_main:
            click.echo(f"{out / 'model'}: {result.num_tokens:,} tokens in {result.num_steps:,} steps")


@click.command()
@click.option("--preset", default="draft-1b", help=f"One of {KNOWN}.")
@click.option("--gpus", type=click.IntRange(min=1), required=True)
@click.option("--gpu", type=click.Choice(sorted(GPUS)), required=True)
@click.option("--tokens", type=number, required=True)
@click.option(
    "--utilisation", type=click.FloatRange(0.01, 1),
    help=f"Share of the peak: the MFU that `train` shows on your machines.  [default: {DEFAULT_UTILISATION}, assumed]",
)  # fmt: skip
@click.option(
    "--from-run", type=FOLDER,
    help="Instead: the median MFU of this run of `train`, on GPUs of the same kind.",
)  # fmt: skip
@click.option(
    "--teacher-parameters", type=number,
    help="Count a teacher of this size, such as 13e9: a forward pass a token.  [default: no teacher]",
)  # fmt: skip
@click.option("--dollars-per-gpu-hour", type=click.FloatRange(min=0), help="[default: a rough market price]")
@json_option
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


@click.command("build-embedded")
@click.option("--work", type=FOLDER, default=WORK, help="Where everything on the way is kept.")
@click.option("--repositories", type=FOLDER, help="Learn from the folders in this folder instead.")
@click.option("--hold-out", multiple=True, metavar="REPOSITORY", help="Hold this one out.")
@click.option("--data-tokens", type=number, default=120e6, help="Training data to make.")
@click.option("--target-minutes", type=click.FloatRange(min=0), help="Training budget of the target.")
@click.option("--draft-minutes", type=click.FloatRange(min=0), help="Training budget of the draft.")
@click.option("--mix", type=click.FloatRange(0, 1), default=0.7, help="The target's share in the draft's loss.")
@click.option(
    "--generated", type=click.IntRange(min=0), default=12_000,
    help="Cursors at which the target writes what its draft learns from.",
)  # fmt: skip
@click.option("--target-out", type=FOLDER, default=Path("target_model/embedded-bf16"))
@click.option("--draft-out", type=FOLDER, default=Path("draft_model/embedded"))
@click.option("--seed", type=int, help="Another seed than the presets'.")
@compile_option
def build_embedded(
    *, work: Path, repositories: Path | None, hold_out: tuple[str, ...], data_tokens: int, target_minutes: float | None,
    draft_minutes: float | None, mix: float, generated: int, target_out: Path, draft_out: Path, seed: int | None,
    is_compiled: bool,
) -> None:  # fmt: skip
    """Build both embedded models: corpus, tokenizer, data, target, draft, figures, cards.

    Parts that --work has are used, and training continues from its checkpoint. Minutes are active ones: a paused
    process spends none.

    \b
    Example:
      draft-model build-embedded --target-minutes 300 --draft-minutes 60
    """
    if num_processes() > 1:
        raise PipelineError("the embedded pair is built by one process, which uses one GPU: start it without torchrun")
    for folder in (target_out, draft_out):
        check_replaceable(folder, CONFIG)
    if not (work / "corpus" / MANIFEST).is_file():
        _collect(work, repositories, hold_out)
    target, draft = (chosen_preset(name, seed=seed) for name in ("embedded-target", "embedded-draft"))
    settings = BuildSettings(
        DataSettings(int(data_tokens), seed=target.train.seed), mix, generated, is_compiled=is_compiled
    )
    figures = build_pair(
        work,
        Role(target, Budget(minutes=target.train.minutes if target_minutes is None else target_minutes), target_out),
        Role(draft, Budget(minutes=draft.train.minutes if draft_minutes is None else draft_minutes), draft_out),
        settings,
        CONSOLE,
    )
    click.echo(probe_table(figures.target.probes))
    for model in (figures.target, figures.draft):
        click.echo(
            f"{model.preset.name}: {model.num_parameters:,} parameters, {model.evaluation.bits_per_byte:.3f} bits per "
            f"byte, {model.num_right} of {len(model.probes)} probes"
        )
    click.echo(f"accepted at K = 4, greedy, offline: {figures.pair.greedy.acceptance_by_length[4]:.1%}")


def _collect(work: Path, repositories: Path | None, hold_out: tuple[str, ...]) -> None:
    if repositories is not None:
        documents = read_repositories(repositories, DEFAULT_SUFFIXES)
        collect_corpus(documents, work / "corpus", CorpusSettings(SHORTENED, held_out=hold_out))
        return
    fetch_wheels(work / "wheels")
    settings = CorpusSettings(SHORTENED, held_out_percent=0.0, held_out=(*HELD_OUT, *hold_out))
    collect_corpus(read_embedded_sources(work / "wheels"), work / "corpus", settings)
