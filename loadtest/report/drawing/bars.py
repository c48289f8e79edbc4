"""A chart of groups of bars with intervals."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from loadtest.report.drawing.canvas import INK, canvas, colour, in_style, label_of, legend_beside, svg_file

_GROUP_WIDTH = 0.8
_ROOM_FOR_LABELS = 1.15

Bar = tuple[float, float, float]
"""A value and its interval; nan for none."""


def bars_svg(series: Mapping[str, Sequence[Bar]], groups: Sequence[str], y_label: str, title: str) -> str:
    """Return an SVG file with a bar of each series in each group, dark on white."""
    return svg_file(bars_picture(series, groups, y_label, title))


@in_style
def bars_picture(series: Mapping[str, Sequence[Bar]], groups: Sequence[str], y_label: str, title: str = "") -> Axes:
    """Draw a bar with its interval and its value for each series in each group."""
    axes = canvas("", y_label, title=title)
    width = _GROUP_WIDTH / len(series)
    for place, (name, bars) in enumerate(series.items()):
        at = np.arange(len(groups)) + (place - (len(series) - 1) / 2) * width
        values = [value for value, _low, _high in bars]
        axes.bar(at, values, width * 0.9, label=label_of(name), color=colour(place))
        for x, (value, low, high) in zip(at, bars, strict=True):
            if not math.isnan(low):
                axes.plot([x, x], [low, high], color=INK, linewidth=1)
            top = value if math.isnan(high) else max(value, high)
            axes.annotate(f"{value:.0f}", (x, top), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom")
    axes.set_xticks(np.arange(len(groups)), list(groups))
    axes.grid(visible=False, axis="x")
    tops = [number for bars in series.values() for bar in bars for number in bar if not math.isnan(number)]
    axes.set_ylim(0, max(tops, default=1.0) * _ROOM_FOR_LABELS or 1.0)
    legend_beside(axes)
    return axes
