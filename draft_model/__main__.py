"""The command line: `draft-model --help`. It turns expected failures into one line, and does nothing else."""

import functools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from draft_model.budget import Budget
from draft_model.build import Role, build_pair
from draft_model.card import probe_table
from draft_model.corpus import collect_corpus, save_corpus
from draft_model.errors import PipelineError
from draft_model.evaluate import evaluate, load_model, measure_agreement
from draft_model.presets import PRESETS, Preset, find_preset
from draft_model.probes import run_probes
from draft_model.tokenizer import Encoder, load_tokenizer
from draft_model.watch import watching
from draft_model.workspace import Workspace

Params = ParamSpec("Params")
Result = TypeVar("Result")
FOLDER = click.Path(path_type=Path, file_okay=False)
WORK = Path("work/embedded")
CONSOLE = Console(stderr=True)

work_option = click.option(
    "--work", type=FOLDER, default=WORK, show_default=True, help="Where corpus, tokenizer and checkpoints are kept."
)
folder_option = click.option(
    "--folder", type=FOLDER, default=None, help="Learn from the Python files of this folder instead."
)
model_option = click.option("--model", type=FOLDER, required=True, help="Model folder in the Hugging Face layout.")
seed_option = click.option("--seed", type=int, default=None, help="Another seed than the preset's.")


def plain_errors(command: Callable[Params, Result]) -> Callable[Params, Result]:
    """Turn a PipelineError into one line on standard error and exit status 1."""

    @functools.wraps(command)
    def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except PipelineError as error:
            raise click.ClickException(str(error)) from error

    return wrapped


@click.group(context_settings={"max_content_width": 110})
@click.option("--threads", type=click.IntRange(min=1), default=None, help="CPU threads.  [default: all cores]")
def main(threads: int | None) -> None:
    """Make and measure the small models that come with the server.

    \b
    Everything, about an hour and a half on two cores; interrupted, the same command goes on:
      draft-model build-embedded
    A quick look at the whole way, with useless models:
      draft-model build-embedded --work /tmp/try --target-minutes 1 --draft-minutes 1 \\
          --target-out /tmp/try/target --draft-out /tmp/try/draft
    What a model makes of twenty plainly predictable places:
      draft-model probes --model target_model/embedded
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(threads or os.cpu_count() or 1)
    disable_progress_bar()  # type: ignore[no-untyped-call]


@main.command("build-embedded")
@work_option
@folder_option
@click.option("--target-minutes", type=click.FloatRange(min=0), default=None, help="Training budget of the target.")
@click.option("--draft-minutes", type=click.FloatRange(min=0), default=None, help="Training budget of the draft.")
@click.option("--target-out", type=FOLDER, default=Path("target_model/embedded"), show_default=True)
@click.option("--draft-out", type=FOLDER, default=Path("draft_model/embedded"), show_default=True)
@seed_option
@plain_errors
def build_embedded(
    *,
    work: Path,
    folder: Path | None,
    target_minutes: float | None,
    draft_minutes: float | None,
    target_out: Path,
    draft_out: Path,
    seed: int | None,
) -> None:
    """Corpus, tokenizer, target, draft, figures, cards and both model folders.

    What is in --work already is used and not made again; training goes on from its checkpoint. Minutes are active ones:
    a paused process spends none.

    \b
    Example:
      draft-model build-embedded --target-minutes 70 --draft-minutes 9
    """
    target, draft = _preset("embedded-target", seed), _preset("embedded-draft", seed)
    figures = build_pair(
        Workspace(work),
        Role(target, Budget(minutes=_given(target_minutes, target.train.minutes)), target_out),
        Role(draft, Budget(minutes=_given(draft_minutes, draft.train.minutes)), draft_out),
        CONSOLE,
        folder,
    )
    click.echo(probe_table(figures.target.probes))
    for model in (figures.target, figures.draft):
        held_out = model.evaluation
        click.echo(
            f"{model.preset.name}: {model.num_parameters:,} parameters, {held_out.bits_per_byte:.3f} bits per byte, "
            f"{model.num_right} of {len(model.probes)} probes"
        )


@main.command()
@click.option("--out", type=click.Path(path_type=Path), default=WORK / "corpus.jsonl", show_default=True)
@folder_option
@plain_errors
def corpus(out: Path, folder: Path | None) -> None:
    """Collect the corpus alone and list its sources.

    \b
    Example:
      draft-model corpus --out work/embedded/corpus.jsonl
    """
    collected = collect_corpus(folder)
    save_corpus(collected, out)
    for entry in collected.summaries:
        click.echo(f"{entry.name:20} {entry.version:14} {entry.licence:28} {entry.num_bytes / 1e6:6.2f} MB")
    total = sum(entry.num_bytes for entry in collected.summaries)
    click.echo(f"{out}: {len(collected.documents)} files, {total / 1e6:.1f} MB")


@main.command()
@click.argument("preset", type=click.Choice(sorted(PRESETS)))
@work_option
@folder_option
@click.option("--minutes", type=click.FloatRange(min=0), default=None, help="Training budget, active minutes.")
@click.option("--steps", type=click.IntRange(min=0), default=None, help="Training budget in steps: repeatable exactly.")
@seed_option
@plain_errors
def train(
    *, preset: str, work: Path, folder: Path | None, minutes: float | None, steps: int | None, seed: int | None
) -> None:
    """Train one preset in --work, from its checkpoint if there is one. `build-embedded` takes it from there.

    \b
    Example:
      draft-model train embedded-draft --minutes 9
    """
    if minutes is not None and steps is not None:
        raise click.UsageError("give --minutes or --steps, not both")
    chosen, space = _preset(preset, seed), Workspace(work)
    texts = space.ensure_corpus(folder)
    encoder = space.ensure_tokenizer(texts, chosen.shape.vocab_size)
    budget = Budget(steps=steps) if steps is not None else Budget(minutes=_given(minutes, chosen.train.minutes))
    with watching(CONSOLE, preset) as watcher:
        space.train(chosen, texts, encoder, budget, watcher)


@main.command("evaluate")
@model_option
@click.option("--draft", type=FOLDER, default=None, help="Also measure how often this draft agrees with the model.")
@work_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@plain_errors
def evaluate_command(model: Path, draft: Path | None, work: Path, as_json: bool) -> None:
    """Held-out loss and bits per byte of a model, on the corpus in --work (collected when it is not there).

    \b
    Example:
      draft-model evaluate --model target_model/embedded --draft draft_model/embedded
    """
    loaded, encoder = load_model(model), Encoder(load_tokenizer(model))
    texts = Workspace(work).ensure_corpus().texts(held_out=True)
    found = asdict(evaluate(loaded, encoder, texts))
    if draft is not None:
        agreement = measure_agreement(loaded, load_model(draft), encoder, texts)
        found |= {"agreement_text": agreement.text, "agreement_completions": agreement.completions}
    lines = (
        f"{name:22} {value:.4g}" if isinstance(value, float) else f"{name:22} {value}" for name, value in found.items()
    )
    click.echo(json.dumps(found) if as_json else "\n".join(lines))


@main.command()
@model_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@plain_errors
def probes(model: Path, as_json: bool) -> None:
    """Complete twenty plainly predictable places, greedily, in the server's prompt layout.

    \b
    Example:
      draft-model probes --model target_model/embedded
    """
    results = run_probes(load_model(model), Encoder(load_tokenizer(model)))
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
        return
    click.echo(probe_table(results))
    click.echo(f"{sum(result.is_right for result in results)} of {len(results)} as expected")


def _preset(name: str, seed: int | None) -> Preset:
    preset = find_preset(name)
    return preset if seed is None else replace(preset, train=replace(preset.train, seed=seed))


def _given(minutes: float | None, default: float) -> float:
    return default if minutes is None else minutes


if __name__ == "__main__":
    main()
