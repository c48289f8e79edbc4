"""The style of the charts: a palette for colour-blind readers, SVG that fits a page.

Inside a page text and lines take the page's own colours, light or dark. Nothing global is changed: no pyplot.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

PALETTE = ("#2b83ba", "#e08214", "#1b9e77", "#c2549a", "#8c6bd1", "#a6761d", "#5aa9c9", "#888888")
"""After Okabe and Ito, "Color Universal Design" (2008), shifted so that each shows on white and on black."""
STYLES = ("-", "--", "-.", ":")
"""Dash patterns, which distinguish lines besides their colours."""
INK, PAPER, FAINT = "#1a1a1b", "#fefefd", "#9a9a9b"
"""Text and axes, the ground, and the grid: a page puts its own in their place."""
ALARM = "#d1495b"

_FONT = 9
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(_INKED, INK),
    "svg.fonttype": "none",
    "svg.hashsalt": "loadtest",
    "text.parse_math": False,
    "font.size": _FONT,
    "font.family": "sans-serif",
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": _FONT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
}

in_style = mpl.rc_context(_STYLE)
"""Decorator for all drawing functions: matplotlib reads its settings for each text, not only once for a picture."""
_GROUP_WIDTH = 0.8
_ROOM_FOR_LABELS = 1.15
Bar = tuple[float, float, float]
"""A value and its interval; nan for none."""


@in_style
def canvas(x_label: str, y_label: str, *, title: str = "", size: tuple[float, float] = (7.6, 2.9)) -> Axes:
    """Return the axes of a new chart."""
    axes = Figure(figsize=size, layout="constrained").add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_title(title, loc="left", fontsize=_FONT + 2)
    return axes


def colour(place: int) -> str:
    """Return the colour of a line by its number."""
    return PALETTE[place % len(PALETTE)]


def style(place: int) -> Any:  # noqa: ANN401 - matplotlib takes a string and names no type for it
    """Return the dash pattern of a line by its number."""
    return STYLES[place % len(STYLES)]


def label_of(name: str) -> str:
    """Return a name that matplotlib shows in a legend: it leaves out those that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def log_ms(axes: Axes, which: str) -> None:
    """Make an axis of milliseconds logarithmic, with plain numbers."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@in_style
def mark_events(axes: Axes, events: Sequence[tuple[float, str]]) -> None:
    """Draw a line with a label at the time of each event."""
    for at_s, label in events:
        axes.axvline(at_s, color=INK, linewidth=1, linestyle=":")
        axes.annotate(
            label, (at_s, 1), xycoords=("data", "axes fraction"), xytext=(3, -3), textcoords="offset points",
            rotation=90, ha="left", va="top", fontsize=_FONT - 1,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip


@in_style
def legend_beside(axes: Axes) -> None:
    """Put the legend to the right of the chart, in the vertical order of the lines."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), borderaxespad=0.2)


def svg_for_page(axes: Axes, name: str) -> str:
    """Return a chart as an SVG element for a page: unique ids, no external addresses, the page's colours."""
    text = _svg(axes, "none")
    text = text[text.index("<svg") :]
    for pattern, new in (
        (r"(?s)<metadata>.*?</metadata>", ""),
        (r' xmlns(?::\w+)?="[^"]*"', ""),
        ("xlink:href", "href"),
        (r'id="([^"]+)"', rf'id="{name}-\1"'),
        (r"url\(#([^)]+)\)", rf"url(#{name}-\1)"),
        (r'href="#([^"]+)"', rf'href="#{name}-\1"'),
        (r"font-family: [^;\"]*", "font-family: inherit"),
        (INK, "currentColor"),
        (PAPER, "var(--paper)"),
        (FAINT, "var(--faint)"),
    ):
        text = re.sub(pattern, new, text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


@in_style
def _svg(axes: Axes, ground: str) -> str:
    written, figure = io.StringIO(), axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(written, format="svg", metadata={"Date": None}, facecolor=ground)
    return written.getvalue()


@in_style
def bars_svg(series: Mapping[str, Sequence[Bar]], groups: Sequence[str], y_label: str, title: str) -> str:
    """Return an SVG file, dark on white: a bar with its interval and its value for each series in each group."""
    axes = canvas("", y_label, title=title)
    width = _GROUP_WIDTH / len(series)
    for place, (name, bars) in enumerate(series.items()):
        at = np.arange(len(groups)) + (place - (len(series) - 1) / 2) * width
        axes.bar(at, [value for value, _low, _high in bars], width * 0.9, label=label_of(name), color=colour(place))
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
    return _svg(axes, "white")
