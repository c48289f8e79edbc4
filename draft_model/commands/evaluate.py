"""`draft-model evaluate`, `held-out` and `probes`."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.progress import Progress

from draft_model.commands.common import (
    CONSOLE,
    FOLDER,
    corpus_option,
    counting,
    json_option,
    model_option,
    plain_errors,
    show,
)
from draft_model.corpus.documents import Side
from draft_model.corpus.store import Corpus
from draft_model.data.tokenizer import check_same_vocabulary, load_encoder
from draft_model.evaluation.held_out import evaluate as evaluate_held_out
from draft_model.evaluation.held_out import held_out_splits
from draft_model.evaluation.loading import load_model
from draft_model.evaluation.offline import Pair, measure_greedy, measure_sampled
from draft_model.evaluation.online import measure_engine
from draft_model.evaluation.probes import probe_table, run_probes
from draft_model.evaluation.report import offline_figures, render_report, write_report

TEMPERATURES = (0.2, 0.8)
WARM_SHARE = 4
"""Sampled completions cost two passes: a quarter as many as greedy ones."""


@click.command()
@click.option("--target", type=FOLDER, required=True)
@click.option("--draft", type=FOLDER, required=True)
@corpus_option
@click.option("--out", type=FOLDER, default=None, help="Folder for report.md, report.json and acceptance.png.")
@click.option("--cursors", type=click.IntRange(min=1), default=200, show_default=True, help="In held-out files.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=32, show_default=True, help="Of a completion.")
@click.option("--speculate", type=click.IntRange(1, 8), default=4, show_default=True, help="K in the engine.")
@click.option("--engine/--no-engine", "with_engine", default=True, show_default=True, help="Measure in vLLM too.")
@json_option
@plain_errors
def evaluate(
    *, target: Path, draft: Path, corpus_folder: Path, out: Path | None, cursors: int, max_tokens: int, speculate: int,
    with_engine: bool, as_json: bool,
) -> None:  # fmt: skip
    """How much of a draft its target accepts: by length, by position, by kind of code; offline and in vLLM.

    \b
    Example:
      draft-model evaluate --target target_model/embedded --draft draft_model/embedded --out work/report
    """
    check_same_vocabulary(draft, target)
    encoder = load_encoder(target)
    texts = [text for text in Corpus(corpus_folder).texts(Side.HELD_OUT) if not encoder.holds_marker(text)]
    splits = held_out_splits(texts, cursors, is_typed_line_only=encoder.layout.is_typed_line_only)
    pair = Pair(load_model(target), load_model(draft), encoder)
    with Progress(console=CONSOLE, transient=True) as progress:
        tally = measure_greedy(pair, splits, max_tokens, counting(progress, "offline"))
    some = splits[::WARM_SHARE]
    sampled = {temperature: measure_sampled(pair, some, max_tokens, temperature) for temperature in TEMPERATURES}
    offline = offline_figures(tally, len(splits), sampled)
    prompts = [encoder.encode_prompt(split.before, split.typed, split.after) for split in splits]
    online = measure_engine(target, draft, prompts, speculate, max_tokens, TEMPERATURES) if with_engine else None
    if out is not None:
        write_report(out, offline, online)
    if as_json:
        click.echo(json.dumps({"offline": asdict(offline), "engine": asdict(online) if online else None}))
    else:
        click.echo(render_report(offline, online))


@click.command("held-out")
@model_option
@corpus_option
@json_option
@plain_errors
def held_out(*, model: Path, corpus_folder: Path, as_json: bool) -> None:
    """Loss and bits per byte of a model on the held-out side of a corpus.

    \b
    Example:
      draft-model held-out --model target_model/embedded
    """
    texts = Corpus(corpus_folder).texts(Side.HELD_OUT)
    show(asdict(evaluate_held_out(load_model(model), load_encoder(model), texts)), as_json=as_json)


@click.command()
@model_option
@json_option
@plain_errors
def probes(model: Path, as_json: bool) -> None:
    """Complete twenty plainly predictable places, greedily, in the server's prompt layout.

    \b
    Example:
      draft-model probes --model target_model/embedded
    """
    results = run_probes(load_model(model), load_encoder(model))
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
        return
    click.echo(probe_table(results))
    click.echo(f"{sum(result.is_right for result in results)} of {len(results)} as expected")
