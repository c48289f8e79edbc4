"""Reports the figures of a pair as Markdown and JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draft_model.core import render, replacing_folder
from draft_model.evaluation.offline import MAX_DRAFT, AcceptanceTally
from draft_model.evaluation.online import EngineFigures, IdentityReport

REPORT = "report.json"
"""The file that marks a report's folder."""


@dataclass(frozen=True)
class TallyFigures:
    """The offline figures at one temperature. Shares are 0 to 1, some by K; `per_position` is for K = 8.

    Intervals are 95%, over draws of cursors.
    """

    num_tokens: int
    agreement: float
    agreement_interval: tuple[float, float]
    acceptance_by_length: dict[int, float]
    acceptance_intervals: dict[int, tuple[float, float]]
    mean_accepted_length: dict[int, float]
    per_position: tuple[float, ...]
    by_kind: dict[str, tuple[float, int]]
    """For each kind of code the share of tokens that the draft predicts, and the number of tokens."""


@dataclass(frozen=True)
class OfflineFigures:
    """The figures measured in transformers, by temperature; 0 is greedy."""

    num_completions: int
    at_temperature: dict[float, TallyFigures]

    @property
    def greedy(self) -> TallyFigures:
        """The figures at temperature 0."""
        return self.at_temperature[0.0]


def offline_figures(num_completions: int, tallies: Mapping[float, AcceptanceTally]) -> OfflineFigures:
    """The figures of the counts at each temperature."""
    return OfflineFigures(num_completions, {degree: _figures(tally) for degree, tally in tallies.items()})


def _figures(tally: AcceptanceTally) -> TallyFigures:
    counts = {length: tally.acceptance(length) for length in range(1, MAX_DRAFT + 1)}
    return TallyFigures(
        tally.num_tokens,
        tally.agreement,
        tally.agreement_interval,
        {length: found.per_token for length, found in counts.items()},
        {length: tally.acceptance_interval(length) for length in counts},
        {length: found.mean_length for length, found in counts.items()},
        counts[MAX_DRAFT].per_position,
        tally.by_kind(),
    )


@dataclass(frozen=True)
class Report:
    """All figures of a pair; None for parts that were not measured."""

    offline: OfflineFigures
    engine: EngineFigures | None = None
    identity: IdentityReport | None = None

    def render(self) -> str:
        """Tables in Markdown."""
        return render("report.md.jinja", **vars(self), most=MAX_DRAFT)

    def to_json(self) -> str:
        """All figures as JSON."""
        record: dict[str, Any] = asdict(self)
        if self.identity:
            record["identity"]["share"] = self.identity.share
        return json.dumps(record, indent=1) + "\n"

    def write(self, out: Path) -> None:
        """Write `report.md` and `report.json` to the folder `out`, both or none."""
        with replacing_folder(out, REPORT) as folder:
            (folder / "report.md").write_text(self.render(), encoding="utf-8")
            (folder / REPORT).write_text(self.to_json(), encoding="utf-8")
