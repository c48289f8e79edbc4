"""Shows the figures of a lost region: tables, the picture, the page and the JSON object."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from matplotlib.axes import Axes
from rich.console import RenderableType

from loadtest.bench.regions.course import Course, Loss
from loadtest.bench.regions.figures import LOST, Figures
from loadtest.bench.runner.figures import text_table
from loadtest.report import charts, tables
from loadtest.report.canvas import svg_file
from loadtest.report.charts import region_lanes
from loadtest.report.document import Verdict
from loadtest.report.figures import shown_number
from loadtest.report.page import Picture, Section, render
from loadtest.stats import RunStats
from loadtest.traffic.scenario import Scenario

_MAX_ERRORS = 10
_PHASES = ("before", "away", "back")
_VERBS = {Loss.KILL: "killed", Loss.SILENCE: "silent"}
_MEANINGS: Mapping[str, str] = {
    "nearest_share_before": "editors at the nearest region before the loss",
    "lost_others": "lost requests, beside those in flight at the loss",
    "next_elsewhere_share": "users whose next request went to another region",
    "next_ms_max": "the slowest next request of a user, ms to its first text",
    "duplicates": "ends and texts that came twice",
    "back_s_p50": "from the first user who came back until half of them had, s",
    "returned_share": "requests to the region that came back, once all users may use it",
    "back_max_share_per_s": "most users who came back within a second",
    "returned_ttft_ms_p99": "TTFT of the region that came back, p99, ms",
}
_LOSS_FIGURES: Mapping[str, str] = {
    "in_flight": "requests in flight at the loss",
    "lost": "lost requests",
    "resent": "requests that were sent to a second region",
    "next_users": "users with a next request",
    "next_in_time_share": "of these, answered within 300 ms",
    "next_ms_p50": "next request, p50, ms",
    "next_ms_p95": "next request, p95, ms",
    "next_ms_p99": "next request, p99, ms",
    "first_back_s": "from the return until the first user was back, s",
    "back_s_p50": "from then until half of the users were, s",
    "back_s_p90": "from then until 90% of the users were, s",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A run with its figures."""

    scenario: Scenario
    round_trips_ms: Mapping[str, float]
    """By region."""
    loss: Loss
    pace: float
    course: Course
    stats: RunStats
    figures: Figures
    verdicts: Sequence[Verdict]
    invalid_because: Sequence[str]

    @property
    def is_passed(self) -> bool:
        """Whether every gate is met."""
        return all(each.is_met for each in self.verdicts)

    @property
    def errors(self) -> dict[str, int]:
        """The errors of requests, the most frequent first."""
        found = Counter(each.error or each.outcome.value for each in self.course.results if each.outcome in LOST)
        return dict(found.most_common(_MAX_ERRORS))

    @property
    def events(self) -> list[tuple[float, str]]:
        """The marks of the picture."""
        name = self.course.regions[0]
        return [
            (self.course.lost_at_s, f"{name} {_VERBS[self.loss]}"),
            (self.course.back_at_s, f"{name} can be reached"),
        ]


def as_json(finding: Finding) -> dict[str, Any]:
    """Return the figures, and what they are of."""
    return {
        **finding.figures,
        "loss": finding.loss.value,
        "pace": finding.pace,
        "round_trip_ms": finding.round_trips_ms,
        "lost_at_s": finding.course.lost_at_s,
        "back_at_s": finding.course.back_at_s,
        "gates": [
            {"gate": str(each.condition), "value": each.value, "is_met": each.is_met} for each in finding.verdicts
        ],
        "invalid_because": list(finding.invalid_because),
        "errors": finding.errors,
    }


def report(finding: Finding) -> list[RenderableType]:
    """Return the gates, the figures of the loss and the return, those of each phase, and what went wrong."""
    errors = [f"lost, {count:,} times: {error}" for error, count in finding.errors.items()]
    invalid = [f"not valid: {reason}" for reason in finding.invalid_because]
    found = (_gate_table(finding), _loss_table(finding), _phase_table(finding))
    shown = [text_table(each.title, each.headings, each.rows, num_words=each.num_words) for each in found]
    return [*shown, *errors, *invalid]


def picture(finding: Finding) -> str:
    """Return the picture as an SVG file."""
    axes = _lanes(finding, f"{finding.course.num_editors:,} editors, and the nearest of three regions is lost")
    assert axes is not None, "editors choose their region here"
    return svg_file(axes)


def page(finding: Finding) -> str:
    """Return the page."""
    budget_ms = finding.scenario.criteria.slo_ttft_ms
    pictures = [
        Picture("Where editors went", _lanes(finding), "Requests and editors by region, and what users felt."),
        Picture("Asked and seen", charts.seen_and_offered(finding.stats, finding.events)),
        Picture("Latency over time", charts.latency_over_time(finding.stats, budget_ms, finding.events)),
        Picture("What became of the requests", charts.outcomes_over_time(finding.stats, finding.events)),
        Picture("TTFT by region", charts.regions(finding.stats)),
    ]
    every = tuple((name, _shown(value)) for name, value in finding.figures.items())
    lost = tables.Table(
        "Why requests were lost", ("", "requests"), tuple((e, f"{n:,}") for e, n in finding.errors.items())
    )
    sections = [
        Section("", tables=[_gate_table(finding), _loss_table(finding), _phase_table(finding), lost]),
        Section("", pictures=pictures),
        Section("All figures", tables=[tables.Table("All figures", ("figure", ""), every)]),
    ]
    facts = {
        "editors": f"{finding.course.num_editors:,}",
        "pace": f"{finding.pace:g} times as slow as people type",
        "round trips": ", ".join(f"{name} {ms:g} ms" for name, ms in finding.round_trips_ms.items()),
        "version": version("completion-server"),
    }
    title = "The nearest region is lost"
    return render(title, finding.scenario.description, facts, list(finding.invalid_because), sections)


def _lanes(finding: Finding, title: str = "") -> Axes | None:
    regions = finding.course.regions
    budget_ms = finding.scenario.criteria.slo_ttft_ms
    return region_lanes(finding.stats, budget_ms, finding.events, regions=regions, title=title)


def _gate_table(finding: Finding) -> tables.Table:
    rows = tuple(
        (
            "passed" if each.is_met else "FAILED",
            str(each.condition),
            _shown(each.value),
            _MEANINGS.get(each.condition.figure, ""),
        )
        for each in finding.verdicts
    )
    return tables.Table("Gates", ("", "gate", "found", "what it is"), rows, num_words=4)


def _loss_table(finding: Finding) -> tables.Table:
    rows = tuple((meaning, _shown(finding.figures[name])) for name, meaning in _LOSS_FIGURES.items())
    return tables.Table("The loss and the return", ("", ""), rows)


def _phase_table(finding: Finding) -> tables.Table:
    names = [
        name.removesuffix("_before")
        for name in finding.figures
        if f"{name.removesuffix('_before')}_away" in finding.figures
    ]
    rows = tuple(
        (name.replace("_", " "), *(_shown(finding.figures[f"{name}_{phase}"]) for phase in _PHASES)) for name in names
    )
    return tables.Table("Before, while it was away, and after it was back", ("", *_PHASES), rows)


def _shown(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if float(value).is_integer() else shown_number(value)
