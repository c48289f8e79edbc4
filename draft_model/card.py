"""The figures of one build, stored as `figures.json` beside the runs, and the model cards made from them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from draft_model.core import Preset, render, write_atomically
from draft_model.corpus.store import SourceSummary, source_table
from draft_model.data.samples import FIM_SHARE, GENERATED_SHARE
from draft_model.evaluation.held_out import Evaluation
from draft_model.evaluation.report import OfflineFigures


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


def save_figures(figures: BuildFigures, path: Path) -> None:
    """Write the figures as JSON."""
    write_atomically(path, (json.dumps(asdict(figures), indent=1) + "\n").encode())


def render_card(figures: BuildFigures, role: str) -> str:
    """The card of the `target` or the `draft` as Markdown, with the metadata block that model hubs read."""
    model = figures.target if role == "target" else figures.draft
    return render(
        "card.md.jinja", figures=figures, model=model, is_draft=role == "draft",
        sources=source_table(figures.sources), fim_share=FIM_SHARE, generated_share=GENERATED_SHARE,
    )  # fmt: skip
