"""Chooses the K of each batch size, and estimates ratios and differences over rounds. Pure.

The compared variants are measured side by side in each round. So a round gives one number, a difference or the
logarithm of a ratio, in which the machine's drift and the round's traffic cancel. All estimates are those of the
server's trial at start: the trimmed mean over rounds, and an interval with Student's t.

Goodput alone decides. Acceptance does not: it stays high where drafting costs more than it gains. The test is that of
the trial too, with one look at the end, so that both choose the same K.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from completion_server.speculation.comparison import ALPHA, compare, margin, rows_of, trimmed_mean
from loadtest.tuning.blocks import Array, Blocks, Rows, Variant

OFF = Variant.fixed(0)
CONFIDENCE = 0.95
MIN_ROUNDS = 3
"""With fewer rounds the noise can't be estimated."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Estimate":
        """Return an estimate without uncertainty."""
        return cls(value, value, value)


def mean_of_rounds(values: Array, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean over rounds of values, one for each. Raises ValueError if there are fewer than MIN_ROUNDS."""
    if len(values) < MIN_ROUNDS:
        raise ValueError(f"at least {MIN_ROUNDS} rounds are needed, got {len(values)}")
    mean, half = trimmed_mean(values.tolist()), margin(values.tolist(), (1 - confidence) / 2)
    return Estimate(mean, mean - half, mean + half)


def ratio_of_rounds(first: Array, second: Array, confidence: float = CONFIDENCE) -> Estimate:
    """Return the geometric mean over rounds of first / second; both positive and of shape (rounds,)."""
    found = mean_of_rounds(np.log(first / second), confidence)
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high))


@dataclass(frozen=True, slots=True)
class Choice:
    """The result for one concurrency. Its intervals have the level `confidence_of` the sweep."""

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


def confidence_of(sweep: Blocks) -> float:
    """Return the level of the intervals of a sweep's choices: the test's error rate, divided by the number of Ks."""
    num_ks = sum(bool(each.k) for each in sweep.variants)
    return 1 - 2 * ALPHA / max(1, num_ks)


def choose(sweep: Blocks) -> list[Choice]:
    """Return the choice for each concurrency, in rising order. The sweep needs K = 0 and three rounds or more."""
    return [_choose(sweep, concurrency) for concurrency in sweep.concurrencies]


def table_of(choices: Sequence[Choice]) -> Rows:
    """Return the speculation schedule of the choices; its last row holds beyond the largest concurrency too."""
    return rows_of({each.concurrency: each.k for each in choices}, choices[-1].concurrency)


def best_fixed(sweep: Blocks) -> Variant:
    """Return the best single K for all concurrencies, with equal weights."""
    fixed = [each for each in sweep.variants if each.k is not None]
    return max(fixed, key=lambda each: (_mean_log_gain(sweep, each), -(each.k or 0)))


def crossover(table: Rows) -> int | None:
    """Return the batch size from which a table has K = 0; None if it drafts at the largest ones too."""
    return table[-1][0] if table[-1][2] == 0 else None


def _choose(sweep: Blocks, concurrency: int) -> Choice:
    off, off_ms = sweep.goodput(concurrency, OFF.name), sweep.total_ms(concurrency, OFF.name)
    log_gains = {
        each.k: np.log(sweep.goodput(concurrency, each.name) / off).tolist() for each in sweep.variants if each.k
    }
    found = compare(log_gains)
    best_k = found.k or found.best_k
    gain = found.gains.get(best_k)
    return Choice(
        concurrency=concurrency,
        k=found.k or 0,
        best_k=best_k,
        gain=Estimate(gain.value, gain.low, gain.high) if gain else Estimate.exact(1.0),
        saved_ms=mean_of_rounds(off_ms - sweep.total_ms(concurrency, Variant.fixed(best_k).name), confidence_of(sweep)),
        total_ms=float(np.mean(off_ms)),
    )


def _mean_log_gain(sweep: Blocks, variant: Variant) -> float:
    ratios = [sweep.goodput(each, variant.name) / sweep.goodput(each, OFF.name) for each in sweep.concurrencies]
    return float(np.mean(np.log(ratios)))
