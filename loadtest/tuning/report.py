"""A tuning's result as JSON, as tables, and as a page with the curves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from loadtest.report.canvas import ALARM, INK, canvas, colour, in_style, legend_beside
from loadtest.report.figures import shown_number
from loadtest.report.page import Picture, Section, render
from loadtest.report.tables import Table
from loadtest.stats import Histogram
from loadtest.tuning.blocks import Block, Blocks, Rows, Variant
from loadtest.tuning.choice import OFF, Estimate, confidence_of, crossover, ratio_of_rounds
from loadtest.tuning.fit import Fit, misfit, step_s
from loadtest.tuning.tuner import Tuned

SCHEMA_VERSION = 1

_MS = 1000.0


def as_json(tuned: Tuned, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result as a JSON object. `speculation set --schedule` reads its "schedule" from the whole file."""
    checked = tuned.verification
    return {
        "valid": tuned.is_valid,
        "schedule": _lists(tuned.recommended),
        "recommended": checked.recommended.name,
        "table": _lists(tuned.table),
        "crossover_batch": crossover(tuned.table),
        "verdict": list(tuned.verdict),
        "troubles": list(tuned.troubles),
        "schema_version": SCHEMA_VERSION,
        "tool": "loadtest tune-k",
        **about,
        "server": dict(tuned.server),
        "choices": [asdict(each) | {"saved_share": each.saved_share} for each in tuned.choices],
        "verification": {
            "best_fixed_k": checked.best_fixed.k,
            "table_over_best_fixed": asdict(checked.table_over_fixed),
            "table_over_off": asdict(checked.table_over_off),
            "best_fixed_over_off": asdict(checked.fixed_over_off),
            "cells": [cell(tuned.checks, *each) for each in tuned.checks.cells],
        },
        "fit": {
            "acceptance_by_position": list(tuned.fit.acceptance.by_position),
            "survival_by_position": list(tuned.fit.acceptance.survival),
            "step_time_terms_s": list(tuned.fit.times.terms),
            "median_error": misfit(tuned.sweep, tuned.fit),
        },
        "cells": [
            cell(blocks, *each, fit=tuned.fit) for blocks in (tuned.sweep, tuned.others) for each in blocks.cells
        ],
        "blocks": [_block(each) for each in (*tuned.sweep.all, *tuned.others.all, *tuned.checks.all)],
    }


def cell(blocks: Blocks, concurrency: int, variant: Variant, *, fit: Fit | None = None) -> dict[str, Any]:
    """Return the figures of a variant at a concurrency, over all rounds; None for missing ones."""
    found = blocks.of(concurrency, variant.name)
    drafted, accepted = sum(each.num_drafted for each in found), sum(each.num_accepted for each in found)
    num_drafts = drafted / variant.k if variant.k else 0
    ttft, total = _joined(each.ttft for each in found), _joined(each.total for each in found)
    values = {
        "tokens_per_s": float(np.mean([each.goodput for each in found])),
        "predicted_tokens_per_s": fit.goodput(concurrency, variant.k) if fit and variant.k is not None else math.nan,
        "stream_tokens_per_s_p50": _median_of([each.stream_tokens_per_s for each in found]),
        "seen_per_s": float(np.mean([each.seen_per_s for each in found])),
        "ttft_ms_p50": ttft.percentile_ms(50),
        "ttft_ms_p95": ttft.percentile_ms(95),
        "total_ms_p50": total.percentile_ms(50),
        "total_ms_p95": total.percentile_ms(95),
        "step_ms": step_s(found) * _MS,
        "mean_batch": float(np.mean([each.mean_batch for each in found])),
        "acceptance": accepted / drafted if drafted else math.nan,
        "accepted_length": 1 + accepted / num_drafts if num_drafts else math.nan,
    }
    return {
        "concurrency": concurrency,
        "variant": variant.name,
        "k": variant.k,
        "num_answers": sum(each.num_answers for each in found),
        "num_cached": sum(each.num_cached for each in found),
        "num_shed": sum(len(each.shed) for each in found),
        **{name: None if math.isnan(value) else round(value, 4) for name, value in values.items()},
        **_over_off(blocks, concurrency, variant),
    }


def _joined(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms."""
    found = Histogram()
    for each in histograms:
        found.add(each)
    return found


def sweep_table(tuned: Tuned) -> Table:
    """Return a row for each concurrency and K."""
    headings = (
        "at once", "", "tokens/s", "predicted", "to K = 0", "each, tokens/s", "seen/s", "TTFT p50 / p95, ms",
        "whole p50, ms", "step, ms", "accepted", "tokens a step",
    )  # fmt: skip
    both = Blocks((*tuned.sweep.all, *tuned.others.all))
    rows = [_row(cell(both, *each, fit=tuned.fit)) for each in both.cells]
    return Table("Every K at every concurrency", headings, tuple(rows), num_words=2)


def choice_table(tuned: Tuned) -> Table:
    """Return a row for each concurrency with the chosen K and its gain."""
    rows = [
        (
            str(each.concurrency),
            str(each.k),
            str(each.best_k) if each.best_k else "-",
            _span(each.gain),
            f"{each.saved_ms.value:.1f} ms ({each.saved_ms.low:.1f} to {each.saved_ms.high:.1f})",
        )
        for each in tuned.choices
    ]
    headings = ("at once", "K", "best above 0", "its tokens/s to K = 0", "it saves of a completion")
    return Table("What each concurrency gets", headings, tuple(rows))


def check_table(tuned: Tuned) -> Table:
    """Return a row for each concurrency with the goodput of the verification."""
    variants = tuned.checks.variants
    rows = tuple(
        (str(concurrency), *(shown_number(tuned.checks.mean_goodput(concurrency, v.name)) for v in variants))
        for concurrency in tuned.checks.concurrencies
    )
    return Table("The check, tokens/s", ("at once", *(each.name for each in variants)), rows)


def _row(found: Mapping[str, Any]) -> tuple[str, ...]:
    def number(name: str) -> str:
        return shown_number(math.nan if found[name] is None else found[name])

    gain = found["to_off"]
    return (
        str(found["concurrency"]),
        found["variant"],
        number("tokens_per_s"),
        number("predicted_tokens_per_s"),
        "-" if gain is None else f"{gain['value']:.2f} ({gain['low']:.2f} to {gain['high']:.2f})",
        number("stream_tokens_per_s_p50"),
        number("seen_per_s"),
        f"{number('ttft_ms_p50')} / {number('ttft_ms_p95')}",
        number("total_ms_p50"),
        number("step_ms"),
        "-" if found["acceptance"] is None else f"{found['acceptance']:.0%}",
        number("accepted_length"),
    )


def _over_off(blocks: Blocks, concurrency: int, variant: Variant) -> dict[str, Any]:
    """Return the goodput ratio to K = 0 in the same blocks."""
    off = blocks.goodput(concurrency, OFF.name)
    if variant == OFF or not len(off):
        return {"to_off": None}
    return {"to_off": asdict(ratio_of_rounds(blocks.goodput(concurrency, variant.name), off))}


def _block(block: Block) -> dict[str, Any]:
    return {
        "variant": block.variant.name,
        "concurrency": block.concurrency,
        "round": block.round,
        "tokens_per_s": round(block.goodput, 3),
        "window_s": round(block.window_s, 4),
        "num_answers": block.num_answers,
        "num_cached": block.num_cached,
        "num_tokens": block.num_tokens,
        "num_drafted": block.num_drafted,
        "num_accepted": block.num_accepted,
        "num_steps": block.num_steps,
        "decode_s": round(block.decode_s, 4),
        "num_shed": len(block.shed),
        "ttft": block.ttft.encode(),
        "total": block.total.encode(),
    }


def _lists(rows: Rows) -> list[list[int]]:
    return [list(row) for row in rows]


def _span(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _median_of(values: Sequence[float]) -> float:
    found = [each for each in values if not math.isnan(each)]
    return float(np.median(found)) if found else math.nan


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
    axes, sweep = canvas("K", "tokens/s", size=(5.2, 2.4)), tuned.sweep
    for k in sweep.ks:
        found = sweep.goodput(concurrency, Variant.fixed(k).name)
        axes.plot([k] * len(found), found, "o", color=colour(0), markersize=3, alpha=0.45)
    means = [sweep.mean_goodput(concurrency, Variant.fixed(k).name) for k in sweep.ks]
    axes.plot(sweep.ks, means, "o", color=colour(0), markersize=6, label="measured")
    predicted = [tuned.fit.goodput(concurrency, k) for k in sweep.ks]
    axes.plot(sweep.ks, predicted, color=colour(1), label="predicted")
    for place, name in enumerate(sorted({each.variant.name for each in tuned.others.all})):
        level = tuned.others.mean_goodput(concurrency, name)
        axes.axhline(level, color=colour(2 + place), linestyle="--", label=name)
    choice = next(each for each in tuned.choices if each.concurrency == concurrency)
    axes.axvline(choice.k, color=INK, linestyle=":", linewidth=1, label=f"chosen: {choice.k}")
    return _over_k(axes)


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
    axes, sweep = canvas("predicted, tokens/s", "measured, tokens/s", size=(5.2, 3.2)), tuned.sweep
    ends: list[float] = []
    for place, concurrency in enumerate(sweep.concurrencies):
        predicted = [tuned.fit.goodput(concurrency, k) for k in sweep.ks]
        measured = [sweep.mean_goodput(concurrency, Variant.fixed(k).name) for k in sweep.ks]
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
    axes, ks = canvas("K", "ms", size=(5.2, 2.6)), tuned.sweep.ks
    for place, load in enumerate(tuned.fit.loads):
        found = [step_s(tuned.sweep.of(load.concurrency, Variant.fixed(k).name)) * _MS for k in ks]
        axes.plot(ks, found, "o", color=colour(place), markersize=4, label=f"{load.concurrency} at once")
        axes.plot(ks, [_MS * tuned.fit.times.seconds(load.batch, k) for k in ks], color=colour(place))
    return _over_k(axes)


def _over_k(axes: Axes) -> Axes:
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(axes)
    return axes
