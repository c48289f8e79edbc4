"""A tuning's result as JSON, as tables, and as a page with the curves."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from loadtest.report.charts import lines
from loadtest.report.figures import shown_number, without_nan
from loadtest.report.page import Picture, Section, render
from loadtest.report.tables import Table
from loadtest.tuning.blocks import Blocks, Variant
from loadtest.tuning.choice import OFF, Estimate, confidence_of, crossover, ratio_of_rounds
from loadtest.tuning.tuner import Tuned

SCHEMA_VERSION = 3

_COLUMNS = {
    "concurrency": "at once", "variant": "", "tokens_per_s": "tokens/s", "to_off": "to K = 0",
    "ttft_ms_p50": "TTFT p50, ms", "ttft_ms_p95": "p95", "total_ms_p50": "whole p50, ms", "step_ms": "step, ms",
    "acceptance": "accepted", "accepted_length": "tokens a step",
}  # fmt: skip


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
            "cells": _cells(tuned.checks),
        },
        "cells": _cells(tuned.sweep),
    }


def _cells(blocks: Blocks) -> list[dict[str, Any]]:
    return [_cell(blocks, at, variant) for at in blocks.concurrencies for variant in blocks.variants]


def _cell(blocks: Blocks, concurrency: int, variant: Variant) -> dict[str, Any]:
    """Return the figures of a variant at a concurrency, over all rounds; None for missing ones."""
    found, off = blocks.of(concurrency, variant), blocks.goodput(concurrency, OFF)
    goodput, answers = blocks.goodput(concurrency, variant), found.answers
    drafted, accepted = (sum(getattr(each, f"{kind}_tokens") for each in answers) for kind in ("drafted", "accepted"))
    num_steps = (
        sum(each.completion_tokens - 1 for each in answers) - accepted
    )  # a step gives one token and the accepted
    decode_ms = sum(each.server.decode_ms for each in answers if each.server)
    times_s = {
        "ttft_ms": [each.first_text_at_s - each.sent_at_s for each in answers if each.first_text_at_s is not None],
        "total_ms": [each.ended_at_s - each.sent_at_s for each in answers if each.ended_at_s is not None],
    }
    figures = {
        "tokens_per_s": float(np.mean(goodput)),
        **{
            f"{name}_p{percent}": 1000 * float(np.percentile(values, percent)) if values else math.nan
            for name, values in times_s.items()
            for percent in (50, 95)
        },
        "step_ms": decode_ms / num_steps if num_steps > 0 else math.nan,
        "acceptance": accepted / drafted if drafted else math.nan,
        "accepted_length": 1 + accepted * variant.k / drafted if variant.k and drafted else math.nan,
    }
    return {
        "concurrency": concurrency,
        "variant": variant.name,
        "k": variant.k,
        "num_answers": len(answers),
        "num_cached": found.num_cached,
        "num_shed": sum(len(each.shed) for each in found.all),
        "tokens_per_s_by_round": [round(float(each), 3) for each in goodput],
        **without_nan(figures),
        "to_off": None if variant == OFF or not len(off) else asdict(ratio_of_rounds(goodput, off)),
    }


def tables(tuned: Tuned) -> tuple[Table, Table, Table]:
    """Return the tables of all measurements, of the choices and of the check."""
    cells = [[_shown(each[name]) for name in _COLUMNS] for each in _cells(tuned.sweep)]
    chosen = [
        [*map(str, (each.concurrency, each.k, each.best_k or "-")), _shown(asdict(each.gain))] for each in tuned.choices
    ]
    checks = tuned.checks
    means = [
        [str(at), *(_shown(float(np.mean(checks.goodput(at, each)))) for each in checks.variants)]
        for at in checks.concurrencies
    ]
    return (
        Table("Every K at every concurrency", tuple(_COLUMNS.values()), cells, 2),
        Table("The best K", ("at once", "K", "best above 0", "its tokens/s to K = 0"), chosen),
        Table("The check, tokens/s", ("at once", *(each.name for each in checks.variants)), means),
    )


def render_tuning(tuned: Tuned, facts: Mapping[str, str]) -> str:
    """Return the page."""
    (sweep, choices, checks), ks = tables(tuned), tuned.sweep.ks
    off = {at: tuned.sweep.goodput(at, OFF) for at in tuned.sweep.concurrencies}
    gains = {
        f"{at} at once": (ks, [ratio_of_rounds(tuned.sweep.goodput(at, Variant.fixed(k)), off[at]).value for k in ks])
        for at in off
    }
    note = f"A K below 1 costs more than it gains. The table has the intervals, of {confidence_of(tuned.sweep):.1%}."
    sections = [
        Section("Verdict", " ".join(tuned.verdict), tables=[choices, checks]),
        Section("Curves", pictures=[Picture("Tokens/s to K = 0", lines(gains, "K", "ratio", marker="o"), note)]),
        Section("Figures", tables=[sweep]),
    ]
    recommended = f"K = {tuned.recommended[0][2]}" if len(tuned.recommended) == 1 else str(tuned.recommended)
    return render("K by batch size", f"Recommended: {recommended}.", facts, tuned.troubles, sections)


def _shown(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, dict):
        found = Estimate(**value)
        return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
    return "-" if value is None else shown_number(value) if isinstance(value, float) else str(value)
