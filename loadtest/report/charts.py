"""The charts of a run. Each takes finished statistics and returns axes, which canvas.py renders as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from loadtest.report.canvas import (
    ALARM,
    canvas,
    colour,
    in_style,
    label_of,
    legend_beside,
    log_ms,
    mark_events,
    style,
)
from loadtest.report.figures import Array, Sums, slice_durations_s
from loadtest.stats import RunStats

Events = Sequence[tuple[float, str]]
StatsByTarget = Mapping[str, RunStats]
Line = tuple[npt.ArrayLike, npt.ArrayLike]
"""Its xs and ys."""

OUTCOME_COLOURS: Mapping[str, str] = {
    "answered": "#1b9e77",
    "cached": "#7cc8b0",
    "empty": "#9aa0a8",
    "superseded": "#5aa9c9",
    "hung_up": "#2b83ba",
    "shed": "#e6b422",
    "deadline": "#e08214",
    "unanswered": "#8c6bd1",
    "error": ALARM,
}
"""Outcomes from best to worst; others come last."""
_STAGES = {"queue": "queue", "tokenise": "tokenise", "prefill": "prefill", "front_end": "front end and network"}
_TIME = "seconds from the start"
_MAX_POINTS = 60
"""More are noise at the width of a chart."""
_MIN_MS = 0.1
"""The start of a logarithmic axis."""


class Series:
    """Sums of neighbouring slices; every result is an array with one number per sum."""

    def __init__(self, stats: RunStats) -> None:
        """Join the slices to as many points as a chart shows."""
        durations_s = slice_durations_s(stats)
        each = math.ceil(len(durations_s) / _MAX_POINTS)
        weights = np.zeros((math.ceil(len(durations_s) / each), len(durations_s)))
        weights[np.arange(len(durations_s)) // each, np.arange(len(durations_s))] = 1
        self.sums = Sums.of_slices(stats, weights)
        self.num_slices: Array = weights.sum(axis=1)
        self.at_s: Array = np.cumsum(self.sums.duration_s) - self.sums.duration_s / 2
        """The middle of each sum's time."""

    def ms(self, histogram: str, percent: float) -> Line:
        """Return the times and a percentile in milliseconds, at least what a logarithmic axis can show."""
        return self.at_s, np.maximum(self.sums.percentile_ms(histogram, percent), _MIN_MS)

    def per_s(self, counter: str) -> Line:
        """Return the times and a counter's rate per second."""
        return self.at_s, self.sums.counter(counter) / self.sums.duration_s


@in_style
def lines(
    found: Mapping[str, Line], x_label: str, y_label: str, *, budget_ms: float | None = None, marker: str = ""
) -> Axes:
    """Draw lines by their labels, from 0 on; with a budget on a logarithmic axis of milliseconds, and marked there."""
    axes = canvas(x_label, y_label)
    for place, (label, (xs, ys)) in enumerate(found.items()):
        axes.plot(xs, ys, label=label_of(label), color=colour(place), ls=style(place), marker=marker, markersize=4.5)
    if budget_ms is None:
        axes.set_ylim(bottom=0)
    else:
        _mark_budget(axes, budget_ms, "y")
    legend_beside(axes)
    return axes


def rates(stats: RunStats, counters: Mapping[str, str], events: Events) -> Axes:
    """Draw the rates of counters by their labels over time."""
    series = Series(stats)
    found = {label: series.per_s(counter) for label, counter in counters.items()}
    return _over_time(lines(found, _TIME, "per second"), stats.duration_s, events)


def latencies(stats: RunStats, budget_ms: float, events: Events) -> Axes:
    """Draw the percentiles of pause requests' TTFT over time, with the budget. A point is marked: it may be alone."""
    series = Series(stats)
    found = {f"p{percent}": series.ms("ttft/pause", percent) for percent in (50, 95, 99)}
    axes = lines(found, _TIME, "TTFT of pauses, ms", budget_ms=budget_ms, marker=".")
    return _over_time(axes, stats.duration_s, events)


def by_target(
    stats_by_target: StatsByTarget,
    line_of: Callable[[Series], Line],
    y_label: str,
    budget_ms: float | None,
    events: Events,
) -> Axes:
    """Draw a line over time for each target."""
    found = {name: line_of(Series(stats)) for name, stats in stats_by_target.items()}
    axes = lines(found, _TIME, y_label, budget_ms=budget_ms, marker=".")
    return _over_time(axes, max(stats.duration_s for stats in stats_by_target.values()), events)


def outcomes(stats: RunStats, events: Events) -> Axes:
    """Draw the outcomes of the requests by intended time, stacked."""
    series, names = Series(stats), outcomes_of(stats)
    rows = {name.replace("_", " "): np.asarray(series.per_s(f"outcome/{name}")[1]) for name in names}
    return _stacked(stats, rows, "requests/s", [OUTCOME_COLOURS.get(name, "#888888") for name in names], events)


def presence(stats: RunStats, events: Events) -> Axes | None:
    """Draw the editors by region over time, stacked; None if editors did not choose a region."""
    if not any(name.endswith("/present") for piece in stats.slices for name in piece.counters):
        return None
    series, names = Series(stats), regions_of(stats)
    # The counter of editors has one count for each slice, of which a point may have several.
    rows = {name: series.sums.counter(f"region/{name}/present") / series.num_slices for name in names}
    return _stacked(stats, rows, "editors", [colour(place) for place in range(len(names))], events)


@in_style
def stages(stats: RunStats) -> Axes | None:
    """Draw the stages of the time to first text, at p50 and at p95; None if the target does not report them."""
    found = {name: label for name, label in _STAGES.items() if f"stage/{name}" in stats.total.histograms}
    if not found:
        return None
    axes, before = canvas("ms", "", size=(7.6, 1.7)), np.zeros(2)
    for place, (name, label) in enumerate(found.items()):
        widths = np.array([stats.total.percentile_ms(f"stage/{name}", percent) for percent in (95, 50)])
        axes.barh(["p95", "p50"], widths, left=before, label=label, color=colour(place), height=0.6)
        before = before + widths
    axes.grid(visible=False, axis="y")
    legend_beside(axes)
    return axes


@in_style
def distribution(stats_by_target: StatsByTarget, budget_ms: float) -> Axes:
    """Draw the cumulative distribution of each target's TTFT of pauses; requests without text keep it below 100%.

    A pause that the editor answered from its own cache asked no target and is left out.
    """
    axes = canvas("TTFT of pauses, ms", "share of requests")
    for place, (name, stats) in enumerate(stats_by_target.items()):
        if (recorded := stats.total.histograms.get("ttft/pause")) is not None:
            values, counts = recorded.arrays()
            num_asked = stats.total.counters["pauses"] - stats.total.counters["pauses_cached"]
            shares = np.cumsum(counts) / max(num_asked, int(counts.sum()), 1)
            axes.step(np.maximum(values, _MIN_MS), shares, where="post", label=label_of(name), color=colour(place),
                      ls=style(place))  # fmt: skip
    _mark_budget(axes, budget_ms, "x")
    axes.set_ylim(0, 1.02)
    legend_beside(axes)
    return axes


def outcomes_of(stats: RunStats) -> list[str]:
    """Return the recorded outcomes, the best first."""
    prefix, order = "outcome/", list(OUTCOME_COLOURS)
    counters = stats.total.counters.items()
    found = [name.removeprefix(prefix) for name, count in counters if name.startswith(prefix) and count]
    return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))


def regions_of(stats: RunStats) -> list[str]:
    """Return the recorded regions by name."""
    names = [name for name in stats.total.counters if name.startswith("region/")]
    return sorted({name.partition("/")[2].rpartition("/")[0] for name in names})


@in_style
def _stacked(stats: RunStats, rows: Mapping[str, Array], y_label: str, colours: Sequence[str], events: Events) -> Axes:
    axes = canvas(_TIME, y_label)
    if rows:
        labels = [label_of(name) for name in rows]
        axes.stackplot(Series(stats).at_s, *rows.values(), labels=labels, colors=colours)
    axes.set_ylim(bottom=0)
    return _over_time(axes, stats.duration_s, events)


@in_style
def _mark_budget(axes: Axes, budget_ms: float, which: str) -> None:
    """Make an axis of milliseconds logarithmic, and mark the budget on it, if there is one."""
    if budget_ms > 0:
        mark = axes.axvline if which == "x" else axes.axhline
        mark(budget_ms, color=ALARM, linewidth=1, label=f"budget {budget_ms:g} ms")
    log_ms(axes, which)


@in_style
def _over_time(axes: Axes, duration_s: float, events: Events) -> Axes:
    axes.set_xlim(0, max(duration_s, 1e-3))
    mark_events(axes, [event for event in events if event[0] <= duration_s])
    legend_beside(axes)
    return axes
