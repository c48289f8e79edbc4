"""Draws a plan: GPUs and cost over the number of sessions, what becomes of the requests, and what the cost rests on.

The only module of the package that imports matplotlib.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from loadtest.planning.assumptions import MAX_SESSIONS
from loadtest.planning.fleet import Plan, gpus_for, plan_of, variations
from loadtest.planning.tables import option_of

FORMATS = (".svg", ".png", ".pdf")

_SIZE = 11.0, 7.4
_BLUE, _ORANGE, _GREEN, _GREY, _DARK = "#2b83ba", "#e08214", "#1b9e77", "#b9b9b9", "#707070"
_NUM_POINTS = 40
_MOST = 2.5
"""The largest number of sessions drawn, as a multiple of the plan's."""
_MAX_BARS = 12
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "plan",
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def draw(plan: Plan, path: Path) -> None:
    """Write the picture; the format is that of the file's name. Raises OSError."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 1), width_ratios=(1.15, 1))
        _draw_gpus(figure.add_subplot(grid[0, 0]), plan)
        _draw_costs(figure.add_subplot(grid[0, 1]), plan)
        _draw_requests(figure.add_subplot(grid[1, :]), plan)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata)


def _draw_gpus(axes: Axes, plan: Plan) -> None:
    """Draw the GPUs that are needed over the sessions, with the range of the estimates, and this plan's point."""
    most = min(MAX_SESSIONS, max(_NUM_POINTS, round(plan.demand.sessions * _MOST)))
    counts = [max(1, round(most * number / _NUM_POINTS)) for number in range(1, _NUM_POINTS + 1)]
    ends = [end for each in variations(plan) for end in (each.at_low, each.at_high)]
    needed = [[gpus_for(each, sessions) for sessions in counts] for each in (plan, *ends)]
    lows, highs = (list(map(pick, *needed)) for pick in (min, max))
    axes.fill_between(counts, lows, highs, color=_BLUE, alpha=0.15, step="pre", label="one estimate low or high")
    axes.step(counts, needed[0], color=_BLUE, where="pre", label="needed")
    if len(plan.regions) > 1:
        sparing = plan_of(plan.assumptions, replace(plan.requirements, survive=1), plan.measured)
        spare = [gpus_for(sparing, sessions) for sessions in counts]
        axes.step(counts, spare, color=_ORANGE, where="pre", label="with a region to spare")
    point = plan.demand.sessions, plan.gpus
    axes.plot(*point, "o", color=_GREEN, markersize=8, label="this plan")
    cost = f"${plan.usd_per_hour:,.0f}/h, ${plan.usd_per_shown:.5f} a completion"
    said = f"{point[0]:,} sessions, {point[1]} GPUs,\n{cost}"
    axes.annotate(said, point, xytext=(8, -8), textcoords="offset points", va="top", color=_GREEN)
    axes.set(title="GPUs and cost", xlabel="open sessions at the busiest time", ylabel="GPUs", xlim=(0, most))
    axes.set_ylim(0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    price = plan.assumptions.money.gpu_usd_hour
    second = axes.twinx()
    second.set_ylim(0, axes.get_ylim()[1] * price)
    second.set_ylabel("$ an hour")
    second.grid(visible=False)
    axes.legend(loc="upper left")


def _draw_costs(axes: Axes, plan: Plan) -> None:
    """Draw the cost of a completion with each assumption at its low and at its high estimate."""
    bars = [each for each in variations(plan) if each.cost_factor > 1][:_MAX_BARS][::-1]
    for place, each in enumerate(bars):
        ends = (each.at_low, _BLUE, "low estimate"), (each.at_high, _ORANGE, "high estimate")
        for at, colour, name in sorted(ends, key=lambda end: -abs(end[0].usd_per_shown - plan.usd_per_shown)):
            label = name if place == 0 else None
            width = at.usd_per_shown - plan.usd_per_shown
            axes.barh(place, width, left=plan.usd_per_shown, color=colour, height=0.6, label=label)
    axes.axvline(plan.usd_per_shown, color="black", linewidth=1)
    labels = [f"{option_of(each.name)[2:]} {each.low:g} to {each.high:g}" for each in bars]
    axes.set_yticks(range(len(bars)), labels)
    axes.set(title="Cost of a completion", xlabel="$ for a completion shown")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:.5f}")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right")


def _draw_requests(axes: Axes, plan: Plan) -> None:
    """Draw what becomes of the requests."""
    demand = plan.demand
    counted = (("shown", demand.shown_share, _GREEN), ("not shown", 1 - demand.shown_share, _GREY))
    modelled = (
        ("shown", demand.shown_share, _GREEN),
        ("no text, or late", max(0.0, demand.standing_share - demand.shown_share), _BLUE),
        ("text too short before the next key", demand.with_first_text_share - demand.standing_share, _ORANGE),
        ("next key before the first text", 1 - demand.prefetch_share - demand.with_first_text_share, _GREY),
        ("prefetch", demand.prefetch_share, _DARK),
    )
    parts = modelled if plan.is_shown_share_modelled else counted
    left = 0.0
    for name, share, colour in parts:
        if share > 0:
            axes.barh(0, share, left=left, color=colour, label=f"{name}: {share:.0%}")
            left += share
    axes.set(title=f"What becomes of {demand.requests_per_s:,.0f} requests/s", xlim=(0, 1), yticks=[])
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=len(parts))
