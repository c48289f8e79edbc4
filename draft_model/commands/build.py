"""`draft-model build-embedded`."""

from dataclasses import replace
from pathlib import Path

import click

from draft_model.commands.common import CONSOLE, FOLDER, WORK, Number, compile_option, plain_errors
from draft_model.core.errors import PipelineError
from draft_model.core.files import check_replaceable
from draft_model.core.presets import Preset, find_preset
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.filters import DEFAULT_SUFFIXES, Rules
from draft_model.corpus.readers import read_repositories
from draft_model.corpus.sources import HELD_OUT, fetch_wheels, read_embedded_sources
from draft_model.corpus.store import MANIFEST
from draft_model.data.shards import DataSettings
from draft_model.evaluation.probes import probe_table
from draft_model.models.export import CONFIG
from draft_model.pair.build import BuildSettings, Role, build_pair
from draft_model.training.budget import Budget
from draft_model.training.world import num_processes

SHORTENED = Rules(is_shortened=True)


@click.command("build-embedded")
@click.option("--work", type=FOLDER, default=WORK, show_default=True, help="Where everything on the way is kept.")
@click.option("--repositories", type=FOLDER, default=None, help="Learn from the folders in this folder instead.")
@click.option("--hold-out", multiple=True, metavar="REPOSITORY", help="Hold this one out.")
@click.option("--data-tokens", type=Number(), default=120e6, show_default=True, help="Training data to make.")
@click.option("--target-minutes", type=click.FloatRange(min=0), default=None, help="Training budget of the target.")
@click.option("--draft-minutes", type=click.FloatRange(min=0), default=None, help="Training budget of the draft.")
@click.option(
    "--mix", type=click.FloatRange(0, 1), default=0.7, show_default=True, help="The target's share in the draft's loss."
)
@click.option(
    "--generated", type=click.IntRange(min=0), default=12_000, show_default=True,
    help="Cursors at which the target writes what its draft learns from.",
)  # fmt: skip
@click.option("--target-out", type=FOLDER, default=Path("target_model/embedded-bf16"), show_default=True)
@click.option("--draft-out", type=FOLDER, default=Path("draft_model/embedded"), show_default=True)
@click.option("--seed", type=int, default=None, help="Another seed than the presets'.")
@compile_option
@plain_errors
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
    target, draft = _preset("embedded-target", seed), _preset("embedded-draft", seed)
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


def _preset(name: str, seed: int | None) -> Preset:
    preset = find_preset(name)
    return preset if seed is None else replace(preset, train=replace(preset.train, seed=seed))
