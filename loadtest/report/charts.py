"""The charts of a run or a sweep. Each takes finished statistics and returns axes, which canvas.py renders as SVG."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
Curves = Mapping[str, tuple[Array, Array]]
"""Lines by their label, each as xs and ys."""

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
_LANES = {"requests/s": 1.9, "editors": 1.5, "TTFT, ms": 1.9, "lost/s": 1.2}
"""Labels of the y axes of charts below one another, with their heights in inches."""
_MIN_MS = 0.1
"""The start of a logarithmic axis."""
_PERCENTS = (50, 95, 99)


class Series:
    """Sums of neighbouring slices; every result is an array with one number per sum."""

    def __init__(self, stats: RunStats, max_points: int = 60) -> None:
        """Join the slices to at most `max_points`; more than 60 are noise at the width of most charts."""
        durations_s = slice_durations_s(stats)
        each = math.ceil(len(durations_s) / max_points)
        weights = np.zeros((math.ceil(len(durations_s) / each), len(durations_s)))
        weights[np.arange(len(durations_s)) // each, np.arange(len(durations_s))] = 1
        self.sums = Sums.of_slices(stats, weights)
        self.at_s: Array = np.cumsum(self.sums.duration_s) - self.sums.duration_s / 2
        """The middle of each sum's time."""

    def ms(self, histogram: str, percent: float) -> tuple[Array, Array]:
        """Return the times and a percentile in milliseconds, at least what a logarithmic axis can show."""
        return self.at_s, np.maximum(self.sums.percentile_ms(histogram, percent), _MIN_MS)

    def per_s(self, counter: str) -> tuple[Array, Array]:
        """Return the times and a counter's rate per second."""
        return self.at_s, self.sums.counter(counter) / self.sums.duration_s


@in_style
def curves(found: Curves, x_label: str, y_label: str, *, budget_ms: float | None = None, marker: str = "") -> Axes:
    """Draw lines, from 0 on; with a budget on a logarithmic axis of milliseconds, and marked there."""
    axes = canvas(x_label, y_label)
    for place, (label, (xs, ys)) in enumerate(found.items()):
        axes.plot(xs, ys, label=label_of(label), color=colour(place), ls=style(place), marker=marker, markersize=4.5)
    if budget_ms is None:
        axes.set_ylim(bottom=0)
    else:
        _mark_budget(axes, budget_ms)
    legend_beside(axes)
    return axes


def latency_over_time(stats: RunStats, budget_ms: float, events: Events = ()) -> Axes:
    """Draw the percentiles of pause requests' TTFT, with the budget."""
    series = Series(stats)
    lines = {f"p{percent}": series.ms("ttft/pause", percent) for percent in _PERCENTS}
    return _over_time(curves(lines, _TIME, "TTFT of pauses, ms", budget_ms=budget_ms), stats.duration_s, events)


def seen_and_offered(stats: RunStats, events: Events = ()) -> Axes:
    """Draw the rates of offered requests and of seen completions."""
    series = Series(stats)
    counters = {"asked": "intended", "asked at a pause": "pauses", "had text": "shown", "seen": "seen"}
    lines = {label: series.per_s(counter) for label, counter in counters.items()}
    return _over_time(curves(lines, _TIME, "per second"), stats.duration_s, events)


def seen_by_target(stats_by_target: StatsByTarget, events: Events = ()) -> Axes:
    """Draw the completions that users of each target saw."""
    lines = {name: Series(stats).per_s("seen") for name, stats in stats_by_target.items()}
    return _over_time(curves(lines, _TIME, "seen/s"), _longest_s(stats_by_target), events)


def latency_by_target(stats_by_target: StatsByTarget, budget_ms: float, events: Events = ()) -> Axes:
    """Draw the p95 of pause requests' TTFT of each target."""
    lines = {name: Series(stats).ms("ttft/pause", 95) for name, stats in stats_by_target.items()}
    axes = curves(lines, _TIME, "TTFT of pauses, p95, ms", budget_ms=budget_ms)
    return _over_time(axes, _longest_s(stats_by_target), events)


@in_style
def outcomes_over_time(stats: RunStats, events: Events = ()) -> Axes:
    """Draw the outcomes of the requests by intended time, stacked."""
    series, axes, names = Series(stats), canvas(_TIME, "requests/s"), outcomes_of(stats)
    if names:
        rates = [series.per_s(f"outcome/{name}")[1] for name in names]
        colours = [OUTCOME_COLOURS.get(name, "#888888") for name in names]
        axes.stackplot(series.at_s, *rates, labels=[name.replace("_", " ") for name in names], colors=colours)
    axes.set_ylim(bottom=0)
    return _over_time(axes, stats.duration_s, events)


@in_style
def ttft_by_cause(stats: RunStats) -> Axes | None:
    """Draw the stages of the time to first text, at p50 and at p95; None if the target does not report them.

    Percentiles of stages do not add up to a percentile of the whole: a slow queue and a slow prefill rarely meet.
    """
    found = {name: label for name, label in STAGES.items() if name in stats.total.histograms}
    if not found:
        return None
    axes, before = canvas("ms", "", size=(7.6, 1.7)), np.zeros(2)
    for place, (name, label) in enumerate(found.items()):
        widths = np.array([stats.total.percentile_ms(name, percent) for percent in (95, 50)])
        axes.barh(["p95", "p50"], widths, left=before, label=label, color=colour(place), height=0.6)
        before = before + widths
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
            axes.step(np.maximum(values, _MIN_MS), shares, where="post", label=label_of(name), color=colour(place),
                      ls=style(place))  # fmt: skip
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
    axes, places = canvas("", "TTFT, ms", size=(7.6, 2.4)), np.arange(len(names))
    for place, percent in enumerate(_PERCENTS):
        heights = [stats.total.percentile_ms(f"ttft/region/{name}", percent) for name in names]
        axes.bar(places + (place - 1) * 0.27, heights, 0.25, label=f"p{percent}", color=colour(place))
    axes.set_xticks(places, [label_of(name) for name in names])
    axes.grid(visible=False, axis="x")
    legend_beside(axes)
    return axes


@in_style
def region_lanes(stats: RunStats, budget_ms: float, events: Events = ()) -> Axes | None:
    """Draw requests and editors by region, TTFT and lost requests over time; None if editors did not choose a region.

    Lost requests are those that failed.
    """
    if not any(name.endswith("/present") for piece in stats.slices for name in piece.counters):
        return None
    series, names = Series(stats, _MAX_POINTS), regions_of(stats)
    figure = Figure(figsize=(7.6, sum(_LANES.values())), layout="constrained")
    lanes = figure.subplots(len(_LANES), sharex=True, height_ratios=list(_LANES.values()))
    requests, editors, ttft, lost = lanes
    # The counter of editors has one count for each slice, of which a point may have several.
    num_slices = np.maximum(1, np.round(series.sums.duration_s / stats.slice_s))
    for axes, rows in (
        (requests, [series.per_s(f"region/{name}/intended")[1] for name in names]),
        (editors, [series.sums.counter(f"region/{name}/present") / num_slices for name in names]),
    ):
        colours, labels = [colour(place) for place in range(len(names))], [label_of(name) for name in names]
        axes.stackplot(series.at_s, *rows, labels=labels, colors=colours)
        axes.set_ylim(bottom=0)
    for place, percent in enumerate((50, 99)):
        ttft.plot(*series.ms("ttft", percent), label=f"p{percent}", color=colour(place + 4), ls=style(place))
    _mark_budget(ttft, budget_ms)
    errors_per_s = series.per_s("errors")[1]
    lost.bar(series.at_s, errors_per_s, series.sums.duration_s, color=ALARM)
    lost.set_ylim(0, max(1.0, float(np.max(errors_per_s)) * 1.1))
    lost.set_xlabel(_TIME)
    for axes, label in zip(lanes, _LANES, strict=True):
        axes.set_ylabel(label)
        _over_time(axes, stats.duration_s, [(at_s, said if axes is requests else "") for at_s, said in events])
    return lanes[0]  # type: ignore[no-any-return]


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


def _longest_s(stats_by_target: StatsByTarget) -> float:
    return max(stats.duration_s for stats in stats_by_target.values())


@in_style
def _mark_budget(axes: Axes, budget_ms: float, which: str = "y") -> None:
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
