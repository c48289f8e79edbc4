"""Builds the embedded pair: corpus, tokenizer, data, target, draft, figures, cards, two model folders.

    corpus/  tokenizer/  data/  target/  draft-TARGET-CURSORS/  figures.json

Parts that exist are used, so the same call continues after an interruption.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from completion_server.text.prompt.templates import EMBEDDED
from draft_model.core import Preset, render, weights_digest, write_atomically
from draft_model.corpus.store import Corpus, Side, SourceSummary, source_table
from draft_model.data.samples import FIM_SHARE, GENERATED_SHARE
from draft_model.data.shards import DataSettings, build_data
from draft_model.data.tokenizer import load_encoder, write_tokenizer
from draft_model.distil import GenerationSettings, draw_cursors, generate
from draft_model.evaluation.held_out import Evaluation, evaluate, held_out_splits
from draft_model.evaluation.offline import Pair, measure
from draft_model.evaluation.report import OfflineFigures, offline_figures
from draft_model.models import load_model, rewrite_card
from draft_model.training.plan import device_name
from draft_model.training.run import MIX, MODEL, Lineage, train

GENERATION = GenerationSettings(max_tokens=48, temperature=0.0, seed=30)
PAIR_CURSORS = 200
PAIR_TOKENS = 32

Working = Callable[..., AbstractContextManager[Callable[[int, int], None]]]
"""`commands.counting`, or another context that shows a stage of the work by its name."""


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


@dataclass(frozen=True)
class ModelFigures:
    """The figures of one trained model: its preset, its size, its quality."""

    preset: Preset
    num_parameters: int
    evaluation: Evaluation

    @property
    def num_tokens(self) -> int:
        """Tokens that it was trained on: whole steps."""
        return self.preset.num_steps * self.preset.batch_tokens


@dataclass(frozen=True)
class BuildFigures:
    """The figures of both models and their corpus.

    `mix` is the target's share in the draft's loss; the target wrote `num_generated` of the draft's completions.
    """

    target: ModelFigures
    draft: ModelFigures
    pair: OfflineFigures
    sources: tuple[SourceSummary, ...]
    num_held_out_files: int
    mix: float
    num_generated: int
    device: str


def build_pair(
    root: Path, settings: BuildSettings, target_out: Path, draft_out: Path, working: Working
) -> BuildFigures:
    """Make both model folders from the corpus in `root`; return their figures.

    Raises PipelineError for failures that the user can fix.
    """
    corpus, tokenizer, target = Corpus(root / "corpus"), root / "tokenizer", root / "target" / MODEL
    if not (tokenizer / "tokenizer.json").is_file():
        with working("learning the tokenizer"):
            write_tokenizer(corpus.training_texts(), tokenizer, settings.target.shape.vocab_size)
    with working("making shards") as on_done:
        build_data(corpus, tokenizer, EMBEDDED, root / "data", settings.data, on_shard=on_done)
    with working("training the target", has_bar=False):
        train(settings.target, root / "data", target.parent)
    # A draft with another teacher, or with other generated text, starts anew in a folder of its own.
    of_draft = root / f"draft-{weights_digest(target)}-{settings.num_generated}"
    data = root / "data"
    if settings.num_generated:
        with working("completing cursors") as on_done:
            data = _make_draft_data(corpus, root, target, of_draft, settings, on_done)
    lineage = Lineage(start_from=target, teacher=target if settings.mix else None, mix=settings.mix)
    with working("training the draft", has_bar=False):
        train(settings.draft, data, of_draft / "run", lineage)
    draft = of_draft / "run" / MODEL
    with working("measuring on held-out files") as on_done:
        figures = _measure(target, draft, corpus, settings, on_done)
    write_atomically(root / "figures.json", (json.dumps(asdict(figures), indent=1) + "\n").encode())
    for role, model, out in (("target", target, target_out), ("draft", draft, draft_out)):
        rewrite_card(model, render_card(figures, role), out)
    return figures


def _make_draft_data(
    corpus: Corpus, root: Path, target: Path, out: Path, settings: BuildSettings, on_done: Callable[[int, int], None]
) -> Path:
    """Let the target complete cursors of the corpus, unless it has, and make the draft's data with these."""
    encoder, generated = load_encoder(target), out / "generated.jsonl"
    cursors = draw_cursors(corpus, encoder, settings.num_generated, GENERATION.seed)
    generate(target, encoder, cursors, GENERATION, generated, on_done=on_done)
    data = replace(settings.data, generated_share=GENERATED_SHARE)
    build_data(corpus, root / "tokenizer", EMBEDDED, out / "data", data, generated=generated)
    return out / "data"


def _measure(
    target: Path, draft: Path, corpus: Corpus, settings: BuildSettings, on_done: Callable[[int, int], None]
) -> BuildFigures:
    """Evaluate the weights as exported: rounded to bfloat16, computed in float32."""
    texts, pair = corpus.texts(Side.HELD_OUT), Pair(load_model(target), load_model(draft), load_encoder(target))
    first, second = (
        ModelFigures(preset, model.num_parameters(), evaluate(model, pair.encoder, texts, on_done=on_done))
        for preset, model in ((settings.target, pair.target), (settings.draft, pair.draft))
    )
    splits = held_out_splits(texts, settings.num_cursors, lines_behind=pair.encoder.template.lines_behind)
    accepted = offline_figures(len(splits), {0.0: measure(pair, splits, PAIR_TOKENS, on_split=on_done)})
    return BuildFigures(
        first, second, accepted, corpus.manifest.sources, len(texts), settings.mix, settings.num_generated,
        device_name(),
    )  # fmt: skip


def render_card(figures: BuildFigures, role: str) -> str:
    """The card of the `target` or the `draft` as Markdown, with the metadata block that model hubs read."""
    model = figures.target if role == "target" else figures.draft
    return render(
        "card.md.jinja", figures=figures, model=model, is_draft=role == "draft",
        sources=source_table(figures.sources), fim_share=FIM_SHARE, generated_share=GENERATED_SHARE,
    )  # fmt: skip
