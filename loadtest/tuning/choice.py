"""Chooses the K of each batch size. Pure.

Goodput alone decides. Acceptance does not: it stays high where drafting costs more than it gains. A K above 0 is chosen
only if it beats 0 beyond noise. Because the best of several Ks looks better than it is, the deciding interval is wider
than the reported one: its error probability is divided by the number of Ks (Bonferroni).
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
    """The result for one concurrency."""

    concurrency: int
    k: int
    """The chosen K."""
    best_k: int
    """The best K above 0; 0 if none was measured."""
    gain: Estimate
    """Ratio of the goodput with `best_k` to that with 0."""
    saved_ms: Estimate
    """Reduction of a completion's median time with `best_k`; negative if it takes longer."""
    total_ms: float
    """A completion's median time with K = 0."""

    @property
    def saved_share(self) -> float:
        """The same reduction relative to the time with K = 0."""
        return self.saved_ms.value / self.total_ms


def choose(sweep: Blocks, confidence: float = CONFIDENCE) -> list[Choice]:
    """Return the choice for each concurrency, in rising order. The sweep needs K = 0 and three rounds or more."""
    return [_choose(sweep, concurrency, confidence) for concurrency in sweep.concurrencies]


def table_of(choices: Sequence[Choice]) -> Rows:
    """Return the speculation schedule of the choices.

    A batch size between two concurrencies gets the K of the nearer one, by ratio. The last row ends at the largest
    concurrency and holds beyond it.
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
    """Return the best single K for all concurrencies, with equal weights."""
    fixed = [each for each in sweep.variants if each.k is not None]
    return max(fixed, key=lambda each: (_mean_log_gain(sweep, each), -(each.k or 0)))


def crossover(table: Rows) -> int | None:
    """Return the batch size from which a table has K = 0; None if it drafts at the largest ones too."""
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
