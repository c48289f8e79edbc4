"""Builds the embedded pair: corpus, tokenizer, data, target, draft, figures, cards, two model folders.

    corpus/  tokenizer/  data/  target/  draft-TARGET-CURSORS/  figures.json

Parts that exist are used, so the same call continues after an interruption.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from completion_server.prompt.templates import EMBEDDED
from draft_model.card import BuildFigures, ModelFigures, render_card, save_figures
from draft_model.core import Preset, weights_digest
from draft_model.corpus.store import Corpus, Side
from draft_model.data.samples import GENERATED_SHARE
from draft_model.data.shards import DataSettings, build_data
from draft_model.data.tokenizer import load_encoder, write_tokenizer
from draft_model.distil import GenerationSettings, draw_cursors, generate
from draft_model.evaluation.held_out import evaluate, held_out_splits, run_probes
from draft_model.evaluation.offline import Pair, measure
from draft_model.evaluation.report import offline_figures
from draft_model.models import load_model, rewrite_card
from draft_model.training.run import MIX, MODEL, train
from draft_model.training.trainer import Budget, TrainResult
from draft_model.training.world import joined_world

GENERATION = GenerationSettings(max_tokens=48, temperature=0.0, seed=30)
PAIR_CURSORS = 200
PAIR_TOKENS = 32


@dataclass(frozen=True)
class Role:
    """One of the two models of a build: its preset, its training budget, and its folder."""

    preset: Preset
    budget: Budget
    out: Path


@dataclass(frozen=True)
class BuildSettings:
    """The settings of both models. `mix` is the target's share in the draft's loss; 0 trains it on text alone.

    Half of the draft's samples have completions that the target wrote at `num_generated` cursors; none if that is 0.
    """

    data: DataSettings
    mix: float = MIX
    num_generated: int = 0
    num_cursors: int = PAIR_CURSORS
    is_compiled: bool = False


def build_pair(root: Path, target: Role, draft: Role, settings: BuildSettings, console: Console) -> BuildFigures:
    """Make both model folders from the corpus in `root`; return their figures.

    Raises PipelineError for failures that the user can fix.
    """
    corpus = Corpus(root / "corpus")
    if not (root / "tokenizer" / "tokenizer.json").is_file():
        write_tokenizer(corpus.training_texts(), root / "tokenizer", target.preset.shape.vocab_size)
    build_data(corpus, root / "tokenizer", EMBEDDED, root / "data", settings.data)
    with joined_world(is_compiled=settings.is_compiled) as world:
        first = train(target.preset, root / "data", root / "target", target.budget, world, console)
        written = root / "target" / MODEL
        # A draft with another teacher, or with other generated text, starts anew in a folder of its own.
        of_draft = root / f"draft-{weights_digest(written)}-{settings.num_generated}"
        draft_data = (
            _make_draft_data(corpus, root, written, of_draft, settings) if settings.num_generated else root / "data"
        )
        second = train(
            draft.preset, draft_data, of_draft / "run", draft.budget, world, console,
            start_from=written, teacher=written if settings.mix else None, mix=settings.mix,
        )  # fmt: skip
    console.print("measuring on held-out files")
    runs = ((target, root / "target", first), (draft, of_draft / "run", second))
    figures = _measure(runs, corpus, settings, world.name)
    save_figures(figures, root / "figures.json")
    for name, (role, run, _) in zip(("target", "draft"), runs, strict=True):
        rewrite_card(run / MODEL, render_card(figures, name), role.out)
        console.print(f"wrote {role.out}")
    return figures


def _make_draft_data(corpus: Corpus, root: Path, target: Path, out: Path, settings: BuildSettings) -> Path:
    """Let the target complete cursors of the corpus, unless it has, and make the draft's data with these."""
    encoder, generated = load_encoder(target), out / "generated.jsonl"
    cursors = draw_cursors(corpus, encoder, settings.num_generated, GENERATION.seed)
    generate(target, encoder, cursors, GENERATION, generated)
    data = replace(settings.data, generated_share=GENERATED_SHARE)
    build_data(corpus, root / "tokenizer", EMBEDDED, out / "data", data, generated=generated)
    return out / "data"


def _measure(
    runs: Sequence[tuple[Role, Path, TrainResult]], corpus: Corpus, settings: BuildSettings, device: str
) -> BuildFigures:
    """Evaluate the weights as exported: rounded to bfloat16, computed in float32."""
    texts = corpus.texts(Side.HELD_OUT)
    target, draft = (_measure_model(role, run, result, texts, device) for role, run, result in runs)
    folders = [run / MODEL for _, run, _ in runs]
    pair = Pair(load_model(folders[0]), load_model(folders[1]), load_encoder(folders[0]))
    splits = held_out_splits(texts, settings.num_cursors, lines_behind=pair.encoder.template.lines_behind)
    accepted = offline_figures(len(splits), {0.0: measure(pair, splits, PAIR_TOKENS)})
    sources = corpus.manifest.sources
    return BuildFigures(target, draft, accepted, sources, len(texts), settings.mix, settings.num_generated)


def _measure_model(role: Role, run: Path, result: TrainResult, texts: Sequence[str], device: str) -> ModelFigures:
    model, encoder = load_model(run / MODEL), load_encoder(run / MODEL)
    return ModelFigures(
        role.preset, model.num_parameters(), result.num_steps, result.num_tokens, result.active_s, device,
        role.budget.minutes, evaluate(model, encoder, texts), run_probes(model, encoder),
    )  # fmt: skip
