"""The style of the charts, and the charts of plain series: a palette for colour-blind readers, SVG that fits a page.

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

_WIDE, _TALL = 7.6, 2.9
_FONT = 9
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "loadtest",
    "text.parse_math": False,
    "font.size": _FONT,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": _FONT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
}


in_style = mpl.rc_context(_STYLE)
"""Decorator for all drawing functions: matplotlib reads its settings for each text, not only once for a picture."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_GROUP_WIDTH = 0.8
_ROOM_FOR_LABELS = 1.15
Bar = tuple[float, float, float]
"""A value and its interval; nan for none."""


@in_style
def canvas(x_label: str, y_label: str, *, title: str = "", size: tuple[float, float] = (_WIDE, _TALL)) -> Axes:
    """Return the axes of a new chart."""
    axes = Figure(figsize=size, layout="constrained").add_subplot()
    axes.set_facecolor("none")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if title:
        axes.set_title(title, loc="left", fontsize=_FONT + 2)
    return axes


@in_style
def lanes(x_label: str, lanes: Sequence[tuple[str, float]], *, title: str = "", wide: float = _WIDE) -> list[Axes]:
    """Return charts under each other that share their x axis, from (label of the y axis, height in inches)."""
    heights = [height for _label, height in lanes]
    figure = Figure(figsize=(wide, sum(heights)), layout="constrained")
    found = figure.subplots(len(lanes), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (label, _height) in zip(found, lanes, strict=True):
        axes.set_facecolor("none")
        axes.set_ylabel(label)
    found[-1].set_xlabel(x_label)
    if title:
        found[0].set_title(title, loc="left", fontsize=_FONT + 2)
    return list(found)


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
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.02), borderaxespad=0.2)


def svg_for_page(axes: Axes, name: str) -> str:
    """Return a chart as an SVG element for a page: unique ids, no external addresses, the page's colours."""
    text = _save_svg(axes, is_transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = text.replace(INK, "currentColor").replace(PAPER, "var(--paper)").replace(FAINT, "var(--faint)")
    return text.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def svg_file(axes: Axes) -> str:
    """Return a chart as a standalone SVG file, dark on white."""
    return _save_svg(axes, is_transparent=False)


@in_style
def _save_svg(axes: Axes, *, is_transparent: bool) -> str:
    written = io.StringIO()
    _figure(axes).savefig(
        written, format="svg", metadata={"Date": None}, facecolor="none" if is_transparent else "white"
    )
    return written.getvalue()


def _figure(axes: Axes) -> Figure:
    found = axes.get_figure(root=True)
    assert found is not None
    return found


@in_style
def curve_picture(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    title: str = "",
    *,
    bound: tuple[float, str] | None = None,
) -> Axes:
    """Draw named series of (x, y); nan leaves a gap. `bound` is a level to mark, with its label."""
    axes = canvas(x_label, y_label, title=title)
    for place, (name, points) in enumerate(series.items()):
        xs, ys = [x for x, _y in points], [y for _x, y in points]
        axes.plot(
            xs, ys, label=label_of(name), color=colour(place), linestyle=style(place),
            marker=_MARKERS[place % len(_MARKERS)], markersize=4.5,
        )  # fmt: skip
    if bound is not None:
        axes.axhline(bound[0], color=ALARM, linewidth=1, linestyle="--", label=bound[1])
    axes.set_ylim(bottom=0)
    legend_beside(axes)
    return axes


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
