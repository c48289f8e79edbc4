"""Builds the embedded pair: corpus, tokenizer, data, target, draft, figures, cards, two model folders.

    corpus/  tokenizer/  data/  target/  draft-TARGET-CURSORS/  figures.json

Parts that exist are used, so the same call continues after an interruption.
"""

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
from draft_model.evaluation.held_out import evaluate, held_out_splits
from draft_model.evaluation.offline import Pair, measure
from draft_model.evaluation.report import offline_figures
from draft_model.models import load_model, rewrite_card
from draft_model.training.gpus import device_name
from draft_model.training.run import MIX, MODEL, Lineage, train

GENERATION = GenerationSettings(max_tokens=48, temperature=0.0, seed=30)
PAIR_CURSORS = 200
PAIR_TOKENS = 32


@dataclass(frozen=True)
class BuildSettings:
    """The settings of both models. `mix` is the target's share in the draft's loss; 0 trains it on text alone.

    Half of the draft's samples have completions that the target wrote at `num_generated` cursors; none if that is 0.
    """

    target: Preset
    draft: Preset
    data: DataSettings
    mix: float = MIX
    num_generated: int = 0
    num_cursors: int = PAIR_CURSORS


def build_pair(
    root: Path, settings: BuildSettings, target_out: Path, draft_out: Path, console: Console
) -> BuildFigures:
    """Make both model folders from the corpus in `root`; return their figures.

    Raises PipelineError for failures that the user can fix.
    """
    corpus, tokenizer, target = Corpus(root / "corpus"), root / "tokenizer", root / "target" / MODEL
    if not (tokenizer / "tokenizer.json").is_file():
        write_tokenizer(corpus.training_texts(), tokenizer, settings.target.shape.vocab_size)
    build_data(corpus, tokenizer, EMBEDDED, root / "data", settings.data)
    console.print("training the target")
    train(settings.target, root / "data", target.parent)
    # A draft with another teacher, or with other generated text, starts anew in a folder of its own.
    of_draft = root / f"draft-{weights_digest(target)}-{settings.num_generated}"
    data = _make_draft_data(corpus, root, target, of_draft, settings) if settings.num_generated else root / "data"
    console.print("training the draft")
    lineage = Lineage(start_from=target, teacher=target if settings.mix else None, mix=settings.mix)
    train(settings.draft, data, of_draft / "run", lineage)
    console.print("measuring on held-out files")
    draft = of_draft / "run" / MODEL
    figures = _measure(target, draft, corpus, settings)
    save_figures(figures, root / "figures.json")
    for role, model, out in (("target", target, target_out), ("draft", draft, draft_out)):
        rewrite_card(model, render_card(figures, role), out)
        console.print(f"wrote {out}")
    return figures


def _make_draft_data(corpus: Corpus, root: Path, target: Path, out: Path, settings: BuildSettings) -> Path:
    """Let the target complete cursors of the corpus, unless it has, and make the draft's data with these."""
    encoder, generated = load_encoder(target), out / "generated.jsonl"
    cursors = draw_cursors(corpus, encoder, settings.num_generated, GENERATION.seed)
    generate(target, encoder, cursors, GENERATION, generated)
    data = replace(settings.data, generated_share=GENERATED_SHARE)
    build_data(corpus, root / "tokenizer", EMBEDDED, out / "data", data, generated=generated)
    return out / "data"


def _measure(target: Path, draft: Path, corpus: Corpus, settings: BuildSettings) -> BuildFigures:
    """Evaluate the weights as exported: rounded to bfloat16, computed in float32."""
    texts, pair = corpus.texts(Side.HELD_OUT), Pair(load_model(target), load_model(draft), load_encoder(target))
    first, second = (
        ModelFigures(preset, model.num_parameters(), evaluate(model, pair.encoder, texts))
        for preset, model in ((settings.target, pair.target), (settings.draft, pair.draft))
    )
    splits = held_out_splits(texts, settings.num_cursors, lines_behind=pair.encoder.template.lines_behind)
    accepted = offline_figures(len(splits), {0.0: measure(pair, splits, PAIR_TOKENS)})
    return BuildFigures(
        first, second, accepted, corpus.manifest.sources, len(texts), settings.mix, settings.num_generated,
        device_name(),
    )  # fmt: skip
