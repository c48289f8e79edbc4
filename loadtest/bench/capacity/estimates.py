"""Capacities over rounds, their ratios, and whether the rounds tell the contestants apart. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from loadtest.tuning.statistics import MIN_ROUNDS, Estimate, ratio_of_rounds

_LEAST_EDITORS = 0.5
"""Stands for a capacity of 0, of which there is no ratio."""

Capacities = Mapping[str, Sequence[float]]
"""Editors by contestant, one number for each round; the same place is the same trace."""


def editors(capacities: Sequence[float]) -> Estimate:
    """Return the geometric mean over rounds, with an interval if there are enough rounds."""
    return ratio(capacities, [1.0] * len(capacities))


def ratio(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the geometric mean of first / second over rounds; the interval is nan with too few rounds."""
    above, below = (np.maximum(np.array(each, dtype=float), _LEAST_EDITORS) for each in (first, second))
    if len(above) >= MIN_ROUNDS:
        return ratio_of_rounds(above, below)
    return Estimate(float(np.exp(np.mean(np.log(above / below)))), float("nan"), float("nan"))


def is_decided(capacities: Capacities, ours: str) -> bool:
    """Return whether our server's ratio to each other contestant differs from 1 beyond noise."""
    found = [ratio(capacities[ours], theirs) for name, theirs in capacities.items() if name != ours]
    return all(each.low > 1 or each.high < 1 for each in found)


def is_another_round_due(
    num_rounds: int, *, has_decided: bool, elapsed_s: float, round_s: float, limit_s: float
) -> bool:
    """Return whether to go on: until an interval exists, then until it decides or the next round comes too late."""
    if num_rounds < MIN_ROUNDS:
        return True
    return not has_decided and elapsed_s + round_s <= limit_s
