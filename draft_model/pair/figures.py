"""The figures of one build, stored as `figures.json` beside the checkpoints and rendered into both model cards."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from draft_model.core.files import write_atomically
from draft_model.core.presets import Preset
from draft_model.corpus.documents import SourceSummary
from draft_model.evaluation.held_out import Evaluation
from draft_model.evaluation.probes import ProbeResult
from draft_model.evaluation.report import OfflineFigures


@dataclass(frozen=True)
class ModelFigures:
    """The figures of one trained model: its size, its training, its quality.

    `active_s` is the training time on `device`; `minutes` is the training budget, None if it was a number of steps.
    """

    preset: Preset
    num_parameters: int
    num_steps: int
    num_tokens: int
    active_s: float
    device: str
    minutes: float | None
    evaluation: Evaluation
    probes: list[ProbeResult]

    @property
    def num_right(self) -> int:
        """Probes with the expected completion."""
        return sum(result.is_right for result in self.probes)


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


def save_figures(figures: BuildFigures, path: Path) -> None:
    """Write the figures as JSON."""
    write_atomically(path, (json.dumps(asdict(figures), indent=1) + "\n").encode())
