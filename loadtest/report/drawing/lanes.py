"""The chart of a run whose editors choose their region: where requests and editors go, and what users feel of it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from loadtest.report.drawing.canvas import (
    ALARM,
    colour,
    in_style,
    label_of,
    lanes,
    legend_beside,
    log_ms,
    mark_events,
    style,
)
from loadtest.report.drawing.charts import regions_of
from loadtest.report.series import Series
from loadtest.report.sums import Array
from loadtest.stats.run_stats import RunStats

_MAX_POINTS = 200
_MIN_MS = 0.1
_LANES = (("requests/s", 1.9), ("editors", 1.5), ("TTFT, ms", 1.9), ("lost/s", 1.2))


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
        values = np.maximum(series.sums.percentile_ms("ttft", percent), _MIN_MS)
        ttft.plot(series.at_s, values, label=f"p{percent}", color=colour(place + 4), ls=style(place))
    ttft.axhline(budget_ms, color=ALARM, linewidth=1, label=f"budget {budget_ms:g} ms")
    log_ms(ttft, "y")
    lost.bar(series.at_s, series.per_s("errors"), series.sums.duration_s, color=ALARM)
    lost.set_ylim(0, max(1.0, float(np.max(series.per_s("errors"))) * 1.1))
    for axes in (requests, editors):
        axes.set_ylim(bottom=0)
    for place, axes in enumerate(charts):
        axes.set_xlim(0, max(stats.duration_s, 1e-3))
        mark_events(axes, [(at_s, "" if place else label) for at_s, label in events if at_s <= stats.duration_s])
        legend_beside(axes)
    return requests


def _mean_present(series: Series, stats: RunStats, name: str) -> Array:
    """Return the editors at a region: the counter has one count for each slice, of which a point may have several."""
    num_slices = np.maximum(1, np.round(series.sums.duration_s / stats.slice_s))
    found: Array = series.sums.counter(f"region/{name}/present") / num_slices
    return found
