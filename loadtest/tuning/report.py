"""A tuning's result as JSON, as tables, and as a page with the curves."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from loadtest.report.canvas import ALARM, INK, canvas, colour, in_style, legend_beside
from loadtest.report.figures import shown_number, without_nan
from loadtest.report.page import Picture, Section, render
from loadtest.report.tables import Table
from loadtest.tuning.blocks import Blocks, Variant
from loadtest.tuning.choice import OFF, Estimate, confidence_of, crossover, ratio_of_rounds
from loadtest.tuning.tuner import Tuned

SCHEMA_VERSION = 2


def as_json(tuned: Tuned, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result as a JSON object. `speculation set --schedule` reads its "schedule" from the whole file."""
    checked = tuned.verification
    return {
        "valid": tuned.is_valid,
        "schedule": tuned.recommended,
        "recommended": checked.recommended.name,
        "table": tuned.table,
        "crossover_batch": crossover(tuned.table),
        "verdict": tuned.verdict,
        "troubles": tuned.troubles,
        "schema_version": SCHEMA_VERSION,
        "tool": "loadtest tune-k",
        **about,
        "server": dict(tuned.server),
        "choices": [asdict(each) for each in tuned.choices],
        "verification": {
            "best_fixed_k": checked.best_fixed.k,
            "table_over_best_fixed": asdict(checked.table_over_fixed),
            "table_over_off": asdict(checked.table_over_off),
            "best_fixed_over_off": asdict(checked.fixed_over_off),
            "cells": [cell(tuned.checks, *each) for each in tuned.checks.cells],
        },
        "cells": [cell(blocks, *each) for blocks in (tuned.sweep, tuned.others) for each in blocks.cells],
    }


def cell(blocks: Blocks, concurrency: int, variant: Variant) -> dict[str, Any]:
    """Return the figures of a variant at a concurrency, over all rounds; None for missing ones."""
    found, off = blocks.of(concurrency, variant.name), blocks.goodput(concurrency, OFF.name)
    goodput, answers = blocks.goodput(concurrency, variant.name), found.answers
    num_tokens, drafted, accepted, decode_s = np.sum(
        [(each.num_tokens - 1, each.num_drafted, each.num_accepted, each.decode_s) for each in answers]
        or [(0, 0, 0, 0.0)],
        axis=0,
    )
    num_steps = num_tokens - accepted  # a step gives one token and the accepted draft tokens
    times = {
        "ttft_ms": [1000 * each.ttft_s for each in answers if each.ttft_s is not None],
        "total_ms": [1000 * each.total_s for each in answers],
    }
    return {
        "concurrency": concurrency,
        "variant": variant.name,
        "k": variant.k,
        "num_answers": len(answers),
        "num_cached": found.num_cached,
        "num_shed": sum(len(each.shed) for each in found.all),
        "tokens_per_s_by_round": [round(float(each), 3) for each in goodput],
        **without_nan(
            {
                "tokens_per_s": float(np.mean(goodput)),
                **{
                    f"{name}_p{percent}": float(np.percentile(values, percent)) if values else math.nan
                    for name, values in times.items()
                    for percent in (50, 95)
                },
                "step_ms": 1000 * float(decode_s / num_steps) if num_steps > 0 else math.nan,
                "acceptance": float(accepted / drafted) if drafted else math.nan,
                "accepted_length": 1 + float(accepted * variant.k / drafted) if variant.k and drafted else math.nan,
            }
        ),
        "to_off": None if variant == OFF or not len(off) else asdict(ratio_of_rounds(goodput, off)),
    }


def tables(tuned: Tuned) -> tuple[Table, Table, Table]:
    """Return the tables of all measurements, of the choices and of the check."""
    names = ("concurrency", "variant", "tokens_per_s", "to_off", "ttft_ms_p50", "ttft_ms_p95", "total_ms_p50",
             "step_ms", "acceptance", "accepted_length")  # fmt: skip
    headings = ("at once", "", "tokens/s", "to K = 0", "TTFT p50, ms", "p95", "whole p50, ms", "step, ms", "accepted",
                "tokens a step")  # fmt: skip
    both, checks = Blocks((*tuned.sweep.all, *tuned.others.all)), tuned.checks
    found = [cell(both, *each) for each in both.cells]
    return (
        Table("Every K at every concurrency", headings, [[_shown(each[name]) for name in names] for each in found], 2),
        Table(
            "What each concurrency gets",
            ("at once", "K", "best above 0", "its tokens/s to K = 0", "it saves of a completion, ms"),
            [
                [*map(str, (each.concurrency, each.k, each.best_k or "-")), _span(each.gain), _span(each.saved_ms)]
                for each in tuned.choices
            ],
        ),
        Table(
            "The check, tokens/s",
            ("at once", *(each.name for each in checks.variants)),
            [
                [str(at), *(shown_number(float(np.mean(checks.goodput(at, v.name)))) for v in checks.variants)]
                for at in checks.concurrencies
            ],
        ),
    )


def render_tuning(tuned: Tuned, facts: Mapping[str, str]) -> str:
    """Return the page."""
    sweep, choices, checks = tables(tuned)
    curves = [
        Picture(f"Tokens/s against K, {each.concurrency} at once", _against_k(tuned, each.concurrency, each.k))
        for each in tuned.choices
    ]
    note = f"Tokens/s, with {confidence_of(tuned.sweep):.1%} intervals; below 1 speculation costs more than it gains."
    sections = [
        Section("Verdict", " ".join(tuned.verdict), tables=[choices, checks]),
        Section("Where it pays", pictures=[Picture("The best K above 0, to K = 0", _crossover(tuned), note)]),
        Section("Curves", "A dot for each round, and a line through their means.", pictures=curves),
        Section("Figures", tables=[sweep]),
    ]
    recommended = f"K = {tuned.recommended[0][2]}" if len(tuned.recommended) == 1 else str(tuned.recommended)
    return render("K by batch size", f"Recommended: {recommended}.", dict(facts), tuned.troubles, sections)


def _shown(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, dict):
        return _span(Estimate(**value))
    return "-" if value is None else shown_number(value) if isinstance(value, float) else str(value)


def _span(found: Estimate) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


@in_style
def _against_k(tuned: Tuned, concurrency: int, chosen: int) -> Axes:
    axes, sweep, others = canvas("K", "tokens/s", size=(5.2, 2.4)), tuned.sweep, tuned.others
    rounds = [sweep.goodput(concurrency, Variant.fixed(k).name) for k in sweep.ks]
    axes.plot(sweep.ks, rounds, "o", color=colour(0), markersize=3, alpha=0.45)
    axes.plot(sweep.ks, np.mean(rounds, axis=1), "o-", color=colour(0), markersize=6, label="mean")
    for place, variant in enumerate(others.variants):
        level = float(np.mean(others.goodput(concurrency, variant.name)))
        axes.axhline(level, color=colour(2 + place), linestyle="--", label=variant.name)
    axes.axvline(chosen, color=INK, linestyle=":", linewidth=1, label=f"chosen: {chosen}")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(axes)
    return axes


@in_style
def _crossover(tuned: Tuned) -> Axes:
    axes = canvas("requests at once", "tokens/s, to K = 0")
    at, gains = [each.concurrency for each in tuned.choices], [each.gain for each in tuned.choices]
    spans = [[each.value - each.low for each in gains], [each.high - each.value for each in gains]]
    axes.errorbar(at, [each.value for each in gains], yerr=spans, marker="o", capsize=3, color=colour(0))
    for each in tuned.choices:
        place = (each.concurrency, each.gain.value)
        axes.annotate(f"K = {each.best_k}", place, xytext=(6, 6), textcoords="offset points")
    axes.axhline(1, color=ALARM, linestyle="--", linewidth=1, label="no gain")
    if (where := crossover(tuned.table)) is not None:
        axes.axvline(where, color=INK, linestyle=":", linewidth=1, label=f"K = 0 from {where} on")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(at))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(at, [str(each) for each in at])
    legend_beside(axes)
    return axes
