"""`draft-model evaluate`, `plan-k` and `held-out`."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from draft_model.commands import (
    COUNT,
    FILE,
    FOLDER,
    corpus_option,
    counting,
    engine_option,
    json_option,
    model_option,
    number,
)
from draft_model.commands import show as show_figures
from draft_model.core import PipelineError, check_replaceable
from draft_model.corpus.store import Corpus, Side
from draft_model.data.tokenizer import check_same_vocabulary, load_encoder
from draft_model.evaluation.gpu_plan import ServedModel, best_lengths
from draft_model.evaluation.held_out import evaluate as evaluate_held_out
from draft_model.evaluation.held_out import held_out_splits
from draft_model.evaluation.offline import MAX_DRAFT, Pair, measure
from draft_model.evaluation.online import check_identity, measure_engine, read_prompts
from draft_model.evaluation.report import REPORT, Report, offline_figures
from draft_model.models import check_goes_with, load_model, read_config, refuse_options
from draft_model.training.plan import GPUS
from draft_model.training.vocabulary import KEPT

TEMPERATURES = (0.2, 0.8)
PROMPT_TOKENS = 32
ALL_LENGTHS = tuple(range(1, MAX_DRAFT + 1))
NOT_TO_CHOOSE = ("model", "speculative_config", "max_num_seqs")
"""vLLM's own settings that are fixed here; they are refused before hours of measuring."""


@click.command()
@click.option("--target", type=FOLDER, required=True)
@click.option("--draft", type=FOLDER, required=True)
@corpus_option
@click.option("--out", type=FOLDER, help="Folder for report.md and report.json.")
@click.option("--cursors", type=COUNT, default=200, help="In held-out files.")
@click.option(
    "--offline-cursors", type=COUNT,
    help="At most so many of these offline too, in float32 on the CPU: few for a large target.  [default: all]",
)  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=2), default=32, help="Of a completion.")
@click.option(
    "--speculate", "lengths", type=click.IntRange(1, MAX_DRAFT), multiple=True, default=ALL_LENGTHS, show_default=False,
    help="K in the engine; may be given more than once.  [default: 1 to 8]",
)  # fmt: skip
@click.option("--greedy-only", is_flag=True, help="Leave the temperatures out: a third of the time.")
@click.option("--engine/--no-engine", "with_engine", default=True, help="Measure in vLLM too.")
@click.option(
    "--prompts", type=FILE,
    help="JSON lines with prompts, such as HumanEval: is greedy text the same with a draft of 4?",
)  # fmt: skip
@click.option("--prompt-tokens", type=COUNT, help="Of a prompt's completion.  [default: 32]")
@engine_option
@json_option
def evaluate(
    *, target: Path, draft: Path, corpus_folder: Path, out: Path | None, cursors: int, offline_cursors: int | None,
    max_tokens: int, lengths: tuple[int, ...], greedy_only: bool, with_engine: bool, prompts: Path | None,
    prompt_tokens: int | None, engine_options: dict[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """Measure how much of a draft its target accepts: by length, position and kind of code; offline and in vLLM.

    \b
    Examples:
      draft-model evaluate --target target_model/embedded --draft draft_model/embedded --out work/report \\
          --corpus draft_model/held_out --prompts target_model/benchmarks/HumanEval.jsonl.gz
      draft-model evaluate --target T --draft D --corpus draft_model/held_out --no-engine --greedy-only
    """
    if prompt_tokens is not None and prompts is None:
        raise click.UsageError("--prompt-tokens has no effect without --prompts")
    prompt_tokens = prompt_tokens or PROMPT_TOKENS
    _check(target, draft, out, engine_options, is_served=with_engine or prompts is not None)
    encoder = load_encoder(target)
    asked = [encoder.encode_prompt(prompt, "", "") for prompt in (read_prompts(prompts) if prompts else ())]
    context = _context_tokens(target, draft, engine_options)
    _check_fit(asked, context - prompt_tokens, f"{prompts}, prompt")
    texts = [text for text in Corpus(corpus_folder).texts(Side.HELD_OUT) if not encoder.holds_marker(text)]
    splits = held_out_splits(texts, cursors, lines_behind=encoder.template.lines_behind)
    cursors_ids = [encoder.encode_prompt(split.before, split.typed, split.after) for split in splits]
    _check_fit(cursors_ids, context - max_tokens, f"{corpus_folder}, cursor")
    temperatures = () if greedy_only else TEMPERATURES
    few = min(offline_cursors or len(splits), len(splits))
    some = [splits[index * len(splits) // few] for index in range(few)]
    with counting("offline") as on_done:
        pair = Pair(load_model(target), load_model(draft), encoder)
        tallies = {degree: measure(pair, some, max_tokens, degree, on_done) for degree in (0.0, *temperatures)}
    report = Report(offline_figures(few, tallies))
    if out is not None:
        report.write(out)  # Before the engine, which may fail.
    if with_engine:
        with counting("vLLM") as on_run:
            figures = measure_engine(
                target, draft, cursors_ids, sorted(set(lengths)), max_tokens, encoder.stops, temperatures,
                engine_options, on_run,
            )  # fmt: skip
        report = replace(report, engine=figures)
    if asked:
        how = {"max_tokens": prompt_tokens, "stops": encoder.stops, "options": engine_options}
        with counting("greedy text"):
            identity = check_identity(pair.target, target, draft, asked, **how)
        report = replace(report, identity=identity)
    if out is not None:
        report.write(out)
    click.echo(report.to_json() if as_json else report.render())


def _check(target: Path, draft: Path, out: Path | None, options: dict[str, Any], *, is_served: bool) -> None:
    """Raise PipelineError, before hours of measuring, for settings or models that can't be measured."""
    refuse_options(options, *NOT_TO_CHOOSE)
    if out is not None:
        check_replaceable(out, REPORT)
    check_same_vocabulary(draft, target)
    if is_served:
        check_goes_with(draft, target)


def _context_tokens(target: Path, draft: Path, options: dict[str, Any]) -> int:
    """The context that both models and the engine's settings allow."""
    limits = [read_config(model).get("max_position_embeddings") for model in (target, draft)]
    limits.append(options.get("max_model_len"))
    return min(most if isinstance(most, int) and most > 0 else sys.maxsize for most in limits)


def _check_fit(prompts: list[list[int]], most: int, name: str) -> None:
    """Raise PipelineError, before hours of measuring, when a prompt leaves no room for a completion."""
    for place, prompt in enumerate(prompts, 1):
        if len(prompt) > most:
            raise PipelineError(
                f"{name} {place}: {len(prompt):,} tokens, more than the {most:,} that the context has for it"
            )


def numbers(text: str) -> tuple[float, ...]:
    """Numbers such as "1.83,2.52": the type of an option."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers") from None


@click.command("plan-k")
@click.option(
    "--tokens-a-step", type=numbers, required=True, metavar="NUMBERS",
    help="For K = 1, 2, ..., such as 1.83,2.52,3.03: from the table of `evaluate`.",
)  # fmt: skip
@click.option("--gpu", type=click.Choice(sorted(GPUS)), required=True)
@click.option("--target-parameters", type=number, default="13e9", help="In INT8.")
@click.option("--draft-parameters", type=number, default="1e9", help="In bfloat16.")
@click.option("--target-kv-bytes", type=number, default="819200", help="Of a token: layers x KV heads x head x 4.")
@click.option("--draft-kv-bytes", type=number, default="24576", help="The same of the draft.")
@click.option("--context-tokens", type=number, default="1024", help="Of a request.")
@click.option(
    "--efficiency", type=click.FloatRange(0.01, 1), default=0.6, help="Share of the GPU's peaks that is reached."
)
@click.option("--step-ms", type=click.FloatRange(0), default=1.0, help="Of a step of the target, around its pass.")
@click.option("--draft-ms", type=click.FloatRange(0), default=0.3, help="Of a pass of the draft, around it.")
@json_option
def plan_k(
    *, tokens_a_step: tuple[float, ...], gpu: str, target_parameters: int, draft_parameters: int, target_kv_bytes: int,
    draft_kv_bytes: int, context_tokens: int, efficiency: float, step_ms: float, draft_ms: float, as_json: bool,
) -> None:  # fmt: skip
    """Calculate the best K by batch size on a GPU from a measured acceptance; `loadtest tune-k` measures it.

    \b
    Example:
      draft-model plan-k --tokens-a-step 1.83,2.52,3.03,3.51 --gpu h100
    """
    target = ServedModel(target_parameters, target_kv_bytes, is_int8=True, around_s=step_ms / 1e3)
    draft = ServedModel(draft_parameters, draft_kv_bytes, is_int8=False, around_s=draft_ms / 1e3)
    rows = best_lengths(tokens_a_step, target, draft, gpu, context_tokens=context_tokens, efficiency=efficiency)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows]))
        return
    click.echo("| requests at once | K | tokens/s over K = 0 | tokens/s of a request |\n| --- | --- | --- | --- |")
    for row in rows:
        click.echo(f"| {row.batch_size} | {row.num_speculative_tokens} | {row.speedup:.2f} | {row.tokens_per_s:.0f} |")


@click.command("held-out")
@model_option
@corpus_option
@json_option
def held_out(*, model: Path, corpus_folder: Path, as_json: bool) -> None:
    """Measure loss and bits per byte of a model on the held-out side of a corpus.

    \b
    Example:
      draft-model held-out --model target_model/embedded --corpus draft_model/held_out
    """
    if (model / KEPT).is_file():
        raise PipelineError(f"{model} has a cut vocabulary: it drafts, and its probabilities say nothing")
    texts = Corpus(corpus_folder).texts(Side.HELD_OUT)
    with counting("rows and cursors") as on_done:
        found = evaluate_held_out(load_model(model), load_encoder(model), texts, on_done=on_done)
    show_figures(asdict(found), as_json=as_json)
