"""Means and ratios over the rounds of a benchmark."""

from collections.abc import Sequence

import numpy as np

from loadtest.tuning.statistics import MIN_ROUNDS, Estimate, ratio_of_rounds


def ratio(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the geometric mean of first / second over rounds.

    It is nan if a round has a zero, and its interval with too few rounds.
    """
    above, below = np.array(first), np.array(second)
    if not (above.all() and below.all()):
        return Estimate(float("nan"), float("nan"), float("nan"))
    if len(above) >= MIN_ROUNDS:
        return ratio_of_rounds(above, below)
    return Estimate(float(np.exp(np.mean(np.log(above / below)))), float("nan"), float("nan"))


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / len(values)
