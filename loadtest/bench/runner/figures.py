"""Percentiles, ratios over rounds with their intervals, and figures as JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadtest.tuning.choice import MIN_ROUNDS, Estimate, ratio_of_rounds

_DIGITS = 6
"""Significant digits of a figure in JSON."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return an interpolated percentile; nan for no values."""
    return float(np.percentile(values, percent)) if values else math.nan


def share(part: float, whole: float) -> float:
    """Return part / whole; nan if the whole is 0."""
    return part / whole if whole else math.nan


def ratio(first: Sequence[float], second: Sequence[float], least: float = 0.0) -> Estimate:
    """Return the geometric mean of first / second over rounds. Values below `least` count as `least`.

    It is nan if a value is 0. The interval is nan with too few rounds.
    """
    above, below = (np.maximum(np.array(each, dtype=float), least) for each in (first, second))
    if not (above.all() and below.all()):
        return Estimate(math.nan, math.nan, math.nan)
    if len(above) >= MIN_ROUNDS:
        return ratio_of_rounds(above, below)
    return Estimate(float(np.exp(np.mean(np.log(above / below)))), math.nan, math.nan)


def for_json(figures: Mapping[Any, Any]) -> dict[str, Any]:
    """Return rounded figures, at any depth; None for nan and infinity. An estimate has its interval beside it."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Estimate):
            found |= for_json({name: value.value, f"{name}_low": value.low, f"{name}_high": value.high})
        else:
            found[str(name)] = _for_json(value)
    return found


def _for_json(value: Any) -> Any:  # noqa: ANN401 - a figure, or several
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return for_json(value)
    return [_for_json(each) for each in value] if isinstance(value, list | tuple) else value
