"""A tuning's page: tokens/s against K by batch size, where speculation stops paying, predicted against measured."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from loadtest.report.canvas import ALARM, INK, canvas, colour, in_style, legend_beside
from loadtest.report.page import Picture, Section, render
from loadtest.tuning.choice import confidence_of, crossover
from loadtest.tuning.document import check_table, choice_table, sweep_table
from loadtest.tuning.fit import step_s
from loadtest.tuning.tuner import Tuned
from loadtest.tuning.verdict import misfit


def render_tuning(tuned: Tuned, facts: Mapping[str, str]) -> str:
    """Return the page."""
    level = confidence_of(tuned.sweep)
    curves = [
        Picture(f"Tokens/s against K, {concurrency} at once", _against_k(tuned, concurrency))
        for concurrency in tuned.sweep.concurrencies
    ]
    sections = [
        Section("Verdict", " ".join(tuned.verdict), tables=[choice_table(tuned), check_table(tuned)]),
        Section(
            "Where it pays",
            pictures=[
                Picture(
                    "The best K above 0, to K = 0",
                    _crossover(tuned),
                    f"Tokens/s, with {level:.1%} intervals; below 1 speculation costs more than it gains.",
                )
            ],
        ),
        Section(
            "Curves",
            "Points: measured, a dot for each round. Line: what acceptance and step times predict.",
            pictures=curves,
        ),
        Section(
            "Predicted and measured",
            f"Half of the predictions are within {misfit(tuned.sweep, tuned.fit):.1%} of the measured values.",
            pictures=[
                Picture("Tokens/s", _predicted(tuned)),
                Picture("Acceptance", _acceptance(tuned), "Of drafts, the share accepted up to each position."),
                Picture("Step time", _step_times(tuned), "As seen by a generation, including the prompts of others."),
            ],
        ),
        Section("Figures", tables=[sweep_table(tuned)]),
    ]
    recommended = f"K = {tuned.recommended[0][2]}" if len(tuned.recommended) == 1 else str(tuned.recommended)
    return render("K by batch size", f"Recommended: {recommended}.", dict(facts), tuned.troubles, sections)


@in_style
def _against_k(tuned: Tuned, concurrency: int) -> Axes:
    axes = canvas("K", "tokens/s", size=(5.2, 2.4))
    fixed = [each for each in tuned.sweep.variants if each.k is not None]
    ks = [each.k or 0 for each in fixed]
    for each in fixed:
        found = tuned.sweep.goodput(concurrency, each.name)
        axes.plot([each.k or 0] * len(found), found, "o", color=colour(0), markersize=3, alpha=0.45)
    means = [float(np.mean(tuned.sweep.goodput(concurrency, each.name))) for each in fixed]
    axes.plot(ks, means, "o", color=colour(0), markersize=6, label="measured")
    axes.plot(ks, [tuned.fit.goodput(concurrency, k) for k in ks], color=colour(1), label="predicted")
    for place, name in enumerate(sorted({each.variant.name for each in tuned.others.all})):
        level = float(np.mean(tuned.others.goodput(concurrency, name)))
        axes.axhline(level, color=colour(2 + place), linestyle="--", label=name)
    choice = next(each for each in tuned.choices if each.concurrency == concurrency)
    axes.axvline(choice.k, color=INK, linestyle=":", linewidth=1, label=f"chosen: {choice.k}")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(axes)
    return axes


@in_style
def _crossover(tuned: Tuned) -> Axes:
    axes = canvas("requests at once", "tokens/s, to K = 0")
    at = [each.concurrency for each in tuned.choices]
    gains = [each.gain for each in tuned.choices]
    below = [each.value - each.low for each in gains]
    above = [each.high - each.value for each in gains]
    axes.errorbar(at, [each.value for each in gains], yerr=[below, above], marker="o", capsize=3, color=colour(0))
    for choice in tuned.choices:
        axes.annotate(
            f"K = {choice.best_k}", (choice.concurrency, choice.gain.value), xytext=(6, 6), textcoords="offset points"
        )
    axes.axhline(1, color=ALARM, linestyle="--", linewidth=1, label="no gain")
    where = crossover(tuned.table)
    if where is not None:
        axes.axvline(where, color=INK, linestyle=":", linewidth=1, label=f"K = 0 from {where} on")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(at))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(at, [str(each) for each in at])
    legend_beside(axes)
    return axes


@in_style
def _predicted(tuned: Tuned) -> Axes:
    axes = canvas("predicted, tokens/s", "measured, tokens/s", size=(5.2, 3.2))
    ends: list[float] = []
    for place, concurrency in enumerate(tuned.sweep.concurrencies):
        ks = [each for each in tuned.sweep.variants if each.k is not None]
        predicted = [tuned.fit.goodput(concurrency, each.k or 0) for each in ks]
        measured = [float(np.mean(tuned.sweep.goodput(concurrency, each.name))) for each in ks]
        ends += [*predicted, *measured]
        axes.plot(predicted, measured, "o", color=colour(place), markersize=4, label=f"{concurrency} at once")
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=INK, linewidth=1, linestyle=":", label="equal")
    legend_beside(axes)
    return axes


@in_style
def _acceptance(tuned: Tuned) -> Axes:
    axes = canvas("position", "accepted so far", size=(5.2, 2.2))
    survival = tuned.fit.acceptance.survival
    axes.plot(range(1, len(survival) + 1), survival, marker="o", color=colour(0))
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return axes


@in_style
def _step_times(tuned: Tuned) -> Axes:
    axes = canvas("K", "ms", size=(5.2, 2.6))
    for place, load in enumerate(tuned.fit.loads):
        drafting = [each for each in tuned.sweep.variants if each.k is not None]
        found = [(each.k or 0, step_s(tuned.sweep.of(load.concurrency, each.name)) * 1000) for each in drafting]
        ks = [k for k, _ms in found]
        axes.plot(
            ks, [ms for _k, ms in found], "o", color=colour(place), markersize=4, label=f"{load.concurrency} at once"
        )
        axes.plot(ks, [1000 * tuned.fit.times.seconds(load.batch, k) for k in ks], color=colour(place))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(axes)
    return axes
