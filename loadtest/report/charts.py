"""The charts of a run. Each takes finished statistics and returns axes, which canvas.py renders as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from loadtest.report.canvas import (
    ALARM,
    canvas,
    colour,
    in_style,
    label_of,
    lanes,
    legend_beside,
    log_ms,
    mark_events,
    style,
)
from loadtest.report.figures import Array, Sums, slice_durations_s
from loadtest.stats import RunStats

Events = Sequence[tuple[float, str]]
StatsByTarget = Mapping[str, RunStats]

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
STAGES: Mapping[str, str] = {
    "stage/queue": "queue",
    "stage/tokenise": "tokenise",
    "stage/prefill": "prefill",
    "stage/front_end": "front end and network",
}

_TIME = "seconds from the start"
_MAX_POINTS = 200
_LANES = (("requests/s", 1.9), ("editors", 1.5), ("TTFT, ms", 1.9), ("lost/s", 1.2))
_MIN_MS = 0.1
"""The start of a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Series:
    """Sums of neighbouring slices; every result is an array with one number per sum."""

    at_s: Array
    """The middle of each sum's time."""
    sums: Sums

    @classmethod
    def of(cls, stats: RunStats, max_points: int = 60) -> "Series":
        """Join the slices to at most `max_points`; more than 60 are noise at the width of most charts."""
        durations_s = slice_durations_s(stats)
        each = math.ceil(len(durations_s) / max_points)
        num_points = math.ceil(len(durations_s) / each)
        weights = np.zeros((num_points, len(durations_s)))
        weights[np.arange(len(durations_s)) // each, np.arange(len(durations_s))] = 1
        sums = Sums.of_slices(stats, weights)
        return cls(np.cumsum(sums.duration_s) - sums.duration_s / 2, sums)

    def ms(self, histogram: str, percent: float) -> Array:
        """Return a percentile in milliseconds, at least what a logarithmic axis can show."""
        return np.maximum(self.sums.percentile_ms(histogram, percent), _MIN_MS)

    def per_s(self, counter: str) -> Array:
        """Return a counter's rate per second."""
        return self.sums.counter(counter) / self.sums.duration_s


@in_style
def latency_over_time(stats: RunStats, budget_ms: float, events: Events = ()) -> Axes:
    """Draw the percentiles of pause requests' TTFT, with the budget."""
    series, axes = Series.of(stats), canvas(_TIME, "TTFT of pauses, ms")
    for place, percent in enumerate((50, 95, 99)):
        _line(axes, place, f"p{percent}", series.at_s, series.ms("ttft/pause", percent))
    _mark_budget(axes, budget_ms)
    return _over_time(axes, stats.duration_s, events)


@in_style
def outcomes_over_time(stats: RunStats, events: Events = ()) -> Axes:
    """Draw the outcomes of the requests by intended time, stacked."""
    series, axes = Series.of(stats), canvas(_TIME, "requests/s")
    names = outcomes_of(stats)
    if names:
        rates = [series.per_s(f"outcome/{name}") for name in names]
        colours = [OUTCOME_COLOURS.get(name, "#888888") for name in names]
        axes.stackplot(series.at_s, *rates, labels=[name.replace("_", " ") for name in names], colors=colours)
    axes.set_ylim(bottom=0)
    return _over_time(axes, stats.duration_s, events)


@in_style
def seen_and_offered(stats: RunStats, events: Events = ()) -> Axes:
    """Draw the rates of offered requests and of seen completions."""
    series, axes = Series.of(stats), canvas(_TIME, "per second")
    lines = (("intended", "asked"), ("pauses", "asked at a pause"), ("shown", "had text"), ("seen", "seen"))
    for place, (counter, label) in enumerate(lines):
        _line(axes, place, label, series.at_s, series.per_s(counter))
    axes.set_ylim(bottom=0)
    return _over_time(axes, stats.duration_s, events)


@in_style
def ttft_by_cause(stats: RunStats) -> Axes | None:
    """Draw the stages of the time to first text, at p50 and at p95; None if the target does not report them.

    Percentiles of stages do not add up to a percentile of the whole: a slow queue and a slow prefill rarely meet.
    """
    total = stats.total
    found = {name: label for name, label in STAGES.items() if name in total.histograms}
    if not found:
        return None
    axes = canvas("ms", "", size=(7.6, 1.7))
    before = [0.0, 0.0]
    for place, (name, label) in enumerate(found.items()):
        widths = [total.percentile_ms(name, percent) for percent in (95, 50)]
        axes.barh(["p95", "p50"], widths, left=before, label=label, color=colour(place), height=0.6)
        before = [left + width for left, width in zip(before, widths, strict=True)]
    axes.grid(visible=False, axis="y")
    legend_beside(axes)
    return axes


@in_style
def ttft_distribution(stats_by_target: StatsByTarget, budget_ms: float) -> Axes:
    """Draw the cumulative distribution of each target's TTFT of pauses; requests without text keep it below 100%."""
    axes = canvas("TTFT of pauses, ms", "share of requests")
    for place, (name, stats) in enumerate(stats_by_target.items()):
        if (recorded := stats.total.histograms.get("ttft/pause")) is not None:
            values, counts = recorded.arrays()
            shares = np.cumsum(counts) / max(stats.total.counters["pauses"], int(counts.sum()), 1)
            _line(axes, place, label_of(name), np.maximum(values, _MIN_MS), shares, drawstyle="steps-post")
    _mark_budget(axes, budget_ms, which="x")
    axes.set_ylim(0, 1.02)
    legend_beside(axes)
    return axes


@in_style
def regions(stats: RunStats) -> Axes | None:
    """Draw each region's TTFT of all requests at p50, p95 and p99; None for a single region."""
    names = regions_of(stats)
    if len(names) < 2:  # noqa: PLR2004
        return None
    axes = canvas("", "TTFT, ms", size=(7.6, 2.4))
    places = np.arange(len(names))
    for place, percent in enumerate((50, 95, 99)):
        heights = [stats.total.percentile_ms(f"ttft/region/{name}", percent) for name in names]
        axes.bar(places + (place - 1) * 0.27, heights, 0.25, label=f"p{percent}", color=colour(place))
    axes.set_xticks(places, [label_of(name) for name in names])
    axes.grid(visible=False, axis="x")
    legend_beside(axes)
    return axes


@in_style
def seen_by_target(stats_by_target: StatsByTarget, events: Events = ()) -> Axes:
    """Draw the completions that users of each target saw."""
    axes = _by_target(stats_by_target, events, "seen/s", lambda series: series.per_s("seen"))
    axes.set_ylim(bottom=0)
    return axes


@in_style
def latency_by_target(stats_by_target: StatsByTarget, budget_ms: float, events: Events = ()) -> Axes:
    """Draw the p95 of pause requests' TTFT of each target."""
    label = "TTFT of pauses, p95, ms"
    axes = _by_target(stats_by_target, events, label, lambda series: series.ms("ttft/pause", 95))
    _mark_budget(axes, budget_ms)
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
    counted = (name.split("/") for name in stats.total.counters if name.startswith("region/"))
    return sorted({"/".join(pieces[1:-1]) for pieces in counted})


def _by_target(stats_by_target: StatsByTarget, events: Events, label: str, values: Callable[[Series], Array]) -> Axes:
    axes = canvas(_TIME, label)
    for place, (name, stats) in enumerate(stats_by_target.items()):
        series = Series.of(stats)
        _line(axes, place, label_of(name), series.at_s, values(series))
    return _over_time(axes, max((stats.duration_s for stats in stats_by_target.values()), default=1.0), events)


def _line(axes: Axes, place: int, label: str, xs: Array, ys: Array, **style_of_line: Any) -> None:  # noqa: ANN401
    """Draw a line, by its number in the chart."""
    axes.plot(xs, ys, label=label, color=colour(place), ls=style(place), **style_of_line)


def _mark_budget(axes: Axes, budget_ms: float, which: str = "y") -> None:
    """Make an axis of milliseconds logarithmic, and mark the budget on it, if there is one."""
    if budget_ms > 0:
        mark = axes.axvline if which == "x" else axes.axhline
        mark(budget_ms, color=ALARM, linewidth=1, label=f"budget {budget_ms:g} ms")
    log_ms(axes, which)


def _over_time(axes: Axes, duration_s: float, events: Events) -> Axes:
    axes.set_xlim(0, max(duration_s, 1e-3))
    mark_events(axes, [event for event in events if event[0] <= duration_s])
    legend_beside(axes)
    return axes


@in_style
def region_lanes(
    stats: RunStats,
    budget_ms: float,
    events: Sequence[tuple[float, str]] = (),
    *,
    regions: Sequence[str] = (),
    title: str = "",
) -> Axes | None:
    """Draw requests and editors by region, TTFT and lost requests over time; None if editors did not choose a region.

    `regions` is the order of the regions, by default that of their names. Lost requests are those that failed.
    """
    if not any(name.endswith("/present") for piece in stats.slices for name in piece.counters):
        return None
    names = list(regions or regions_of(stats))
    series = Series.of(stats, _MAX_POINTS)
    charts = lanes("seconds from the start", _LANES, title=title)
    requests, editors, ttft, lost = charts
    colours = [colour(place) for place in range(len(names))]
    labels = [label_of(name) for name in names]
    rates = [series.per_s(f"region/{name}/intended") for name in names]
    requests.stackplot(series.at_s, *rates, labels=labels, colors=colours)
    counts = [_mean_present(series, stats, name) for name in names]
    editors.stackplot(series.at_s, *counts, labels=labels, colors=colours)
    for place, percent in enumerate((50, 99)):
        ttft.plot(
            series.at_s, series.ms("ttft", percent), label=f"p{percent}", color=colour(place + 4), ls=style(place)
        )
    _mark_budget(ttft, budget_ms)
    lost.bar(series.at_s, series.per_s("errors"), series.sums.duration_s, color=ALARM)
    lost.set_ylim(0, max(1.0, float(np.max(series.per_s("errors"))) * 1.1))
    for axes in (requests, editors):
        axes.set_ylim(bottom=0)
    for place, axes in enumerate(charts):
        _over_time(axes, stats.duration_s, [(at_s, "" if place else label) for at_s, label in events])
    return requests


def _mean_present(series: Series, stats: RunStats, name: str) -> Array:
    """Return the editors at a region: the counter has one count for each slice, of which a point may have several."""
    num_slices = np.maximum(1, np.round(series.sums.duration_s / stats.slice_s))
    found: Array = series.sums.counter(f"region/{name}/present") / num_slices
    return found
