"""Which K each batch size gets. Pure.

By goodput alone, never by acceptance: that stays high exactly where drafting costs more than it brings. A K is taken
only where it is better than 0 beyond noise. As the best of many looks better than it is, the interval that decides is
wider than the one that is shown: its doubt is divided by the number of Ks (Bonferroni).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadtest.tuning.blocks import Blocks, Rows, Variant
from loadtest.tuning.statistics import CONFIDENCE, Estimate, mean_of_rounds, ratio_of_rounds

OFF = Variant.fixed(0)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found for one concurrency."""

    concurrency: int
    k: int
    """What it gets."""
    best_k: int
    """Of those above 0, the one that did best; 0 where none was measured."""
    gain: Estimate
    """Goodput with `best_k` to that with 0."""
    saved_ms: Estimate
    """What `best_k` saves of a completion's median time; below 0 it costs."""
    total_ms: float
    """A completion's median time with 0."""

    @property
    def saved_share(self) -> float:
        """What `best_k` saves, of the time with 0."""
        return self.saved_ms.value / self.total_ms


def choose(sweep: Blocks, confidence: float = CONFIDENCE) -> list[Choice]:
    """Return what each concurrency gets, these rising. The sweep has K = 0, in three rounds or more."""
    return [_choose(sweep, concurrency, confidence) for concurrency in sweep.concurrencies]


def table_of(choices: Sequence[Choice]) -> Rows:
    """Return the schedule that gives each concurrency its K; a batch size in between goes with the nearer one.

    Nearer by ratio. The last row ends at the largest concurrency and, as in any schedule, holds beyond it.
    """
    rows: list[tuple[int, int, int]] = []
    lasts = [max(low.concurrency, math.isqrt(low.concurrency * high.concurrency)) for low, high in pairwise(choices)]
    for choice, last in zip(choices, [*lasts, choices[-1].concurrency], strict=True):
        if rows and rows[-1][2] == choice.k:
            rows[-1] = (rows[-1][0], last, choice.k)
        else:
            rows.append((rows[-1][1] + 1 if rows else 1, last, choice.k))
    return tuple(rows)


def best_fixed(sweep: Blocks) -> Variant:
    """Return the one K that does best if there can be only one: all concurrencies weigh alike."""
    fixed = [each for each in sweep.variants if each.k is not None]
    return max(fixed, key=lambda each: (_mean_log_gain(sweep, each), -(each.k or 0)))


def crossover(table: Rows) -> int | None:
    """Return the batch size from which on a table never drafts; None where it does for the largest ones, too."""
    return table[-1][0] if table[-1][2] == 0 else None


def _choose(sweep: Blocks, concurrency: int, confidence: float) -> Choice:
    off, off_ms = sweep.goodput(concurrency, OFF.name), sweep.total_ms(concurrency, OFF.name)
    drafting = [each for each in sweep.variants if each.k]
    gains = {each: ratio_of_rounds(sweep.goodput(concurrency, each.name), off, confidence) for each in drafting}
    best = max(drafting, key=lambda each: gains[each].value, default=OFF)
    strict = 1 - (1 - confidence) / max(1, len(drafting))
    sure = best is not OFF and ratio_of_rounds(sweep.goodput(concurrency, best.name), off, strict).low > 1
    saved_ms = mean_of_rounds(off_ms - sweep.total_ms(concurrency, best.name), confidence)
    return Choice(
        concurrency=concurrency,
        k=(best.k or 0) if sure else 0,
        best_k=best.k or 0,
        gain=gains.get(best, Estimate.exact(1.0)),
        saved_ms=saved_ms,
        total_ms=float(np.mean(off_ms)),
    )


def _mean_log_gain(sweep: Blocks, variant: Variant) -> float:
    ratios = [sweep.goodput(each, variant.name) / sweep.goodput(each, OFF.name) for each in sweep.concurrencies]
    return float(np.mean(np.log(ratios)))
