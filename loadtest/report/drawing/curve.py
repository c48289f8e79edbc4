"""The chart of a sweep: a curve for each target over the load."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from loadtest.report.drawing.canvas import ALARM, canvas, colour, in_style, label_of, legend_beside, style, svg_file

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def curve_svg(series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, title: str) -> str:
    """Return an SVG file of named series of (x, y), dark on white."""
    return svg_file(curve_picture(series, x_label, y_label, title))


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
