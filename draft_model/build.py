"""The whole build: corpus, tokenizer, target, draft, evaluation, cards, two model folders. Interrupted, it goes on."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from draft_model.budget import Budget
from draft_model.card import render_card
from draft_model.corpus import Corpus
from draft_model.evaluate import evaluate, measure_agreement
from draft_model.export import as_evaluated, export_model, to_bfloat16
from draft_model.figures import BuildFigures, ModelFigures, save_figures
from draft_model.model import num_parameters
from draft_model.presets import Preset
from draft_model.probes import run_probes
from draft_model.tokenizer import Encoder, load_tokenizer
from draft_model.train import TrainResult
from draft_model.watch import watching
from draft_model.workspace import Workspace


@dataclass(frozen=True)
class Role:
    """One of the two models of a build: how to train it, for how long, and where it goes."""

    preset: Preset
    budget: Budget
    out: Path


def build_pair(
    space: Workspace, target: Role, draft: Role, console: Console, folder: Path | None = None
) -> BuildFigures:
    """Make both model folders from what `space` holds, training what is not trained; return what was measured.

    The corpus is that of `folder` when it is given. Raises PipelineError for what the person can remove.
    """
    corpus = space.ensure_corpus(folder)
    encoder = space.ensure_tokenizer(corpus, target.preset.shape.vocab_size)
    trained = [_train(space, role, corpus, encoder, console) for role in (target, draft)]
    console.print("evaluating on held-out files")
    figures = _measure(target, draft, trained, corpus, encoder)
    save_figures(figures, space.root / "figures.json")
    tokenizer = load_tokenizer(space.tokenizer_folder)
    for name, role, result in (("target", target, trained[0]), ("draft", draft, trained[1])):
        model = to_bfloat16(result.model, role.preset.shape)
        export_model(model, tokenizer, render_card(figures, name), role.out)
        console.print(f"wrote {role.out}")
    return figures


def _train(space: Workspace, role: Role, corpus: Corpus, encoder: Encoder, console: Console) -> TrainResult:
    with watching(console, role.preset.name) as watcher:
        return space.train(role.preset, corpus, encoder, role.budget, watcher)


def _measure(target: Role, draft: Role, trained: list[TrainResult], corpus: Corpus, encoder: Encoder) -> BuildFigures:
    """Evaluate the weights as exported: rounded to bfloat16, computed in float32."""
    texts = corpus.texts(held_out=True)
    rounded = [
        as_evaluated(to_bfloat16(result.model, role.preset.shape))
        for role, result in zip((target, draft), trained, strict=True)
    ]
    measured = [
        ModelFigures(
            role.preset,
            num_parameters(model),
            result.num_steps,
            result.num_tokens,
            result.active_s,
            evaluate(model, encoder, texts),
            run_probes(model, encoder),
        )
        for role, result, model in zip((target, draft), trained, rounded, strict=True)
    ]
    num_tokens = sum(len(encoder.encode(text)) for text in corpus.texts(held_out=False))
    agreement = measure_agreement(rounded[0], rounded[1], encoder, texts)
    return BuildFigures(measured[0], measured[1], agreement, corpus.summaries, num_tokens, len(texts))
