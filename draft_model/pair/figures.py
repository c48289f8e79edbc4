"""The figures of one build, kept as `figures.json` beside the checkpoints and rendered into both model cards."""

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
    """One trained model: what it is, what it took, what it reaches.

    `active_s` were spent on `device`; `minutes` is the training budget, None where it was a number of steps.
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
        """Probes that came out as expected."""
        return sum(result.is_right for result in self.probes)


@dataclass(frozen=True)
class BuildFigures:
    """Both models and the corpus that they share.

    `mix` is the target's share in the draft's loss; at `num_generated` cursors the target wrote what the draft read.
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
