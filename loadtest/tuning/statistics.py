"""Confidence intervals of measured figures: a bootstrap over rounds. Pure.

The compared variants are measured side by side in each round. So a round gives one number, a difference or the
logarithm of a ratio, in which the machine's drift and the round's traffic cancel. These numbers are drawn with
replacement. Because a few rounds underestimate the spread, the interval is widened by the ratio of Student's t to the
normal quantile.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

from loadtest.tuning.blocks import Array

CONFIDENCE = 0.95
MIN_ROUNDS = 3
"""With fewer rounds the noise can't be estimated."""

_NUM_SAMPLES = 4000
_SEED = 7


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
    """Return the mean of one value per round; `values` has the shape (rounds,).

    Raises:
        ValueError: there are fewer than MIN_ROUNDS.

    """
    count = len(values)
    if count < MIN_ROUNDS:
        msg = f"at least {MIN_ROUNDS} rounds are needed, got {count}"
        raise ValueError(msg)
    mean = float(np.mean(values))
    places = np.random.default_rng(_SEED).integers(count, size=(_NUM_SAMPLES, count))
    low, high = np.quantile(values[places].mean(axis=1), [0.5 - confidence / 2, 0.5 + confidence / 2])
    widened = _widening(count, confidence)
    return Estimate(mean, mean - widened * (mean - float(low)), mean + widened * (float(high) - mean))


def ratio_of_rounds(first: Array, second: Array, confidence: float = CONFIDENCE) -> Estimate:
    """Return the geometric mean over rounds of first / second; both positive and of shape (rounds,)."""
    found = mean_of_rounds(np.log(first / second), confidence)
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def _widening(count: int, confidence: float) -> float:
    """Return the factor by which a bootstrap interval from `count` values is too narrow."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    t = float(stdtrit(count - 1, 0.5 + confidence / 2))
    return t / z * math.sqrt(count / (count - 1))
