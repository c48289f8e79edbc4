"""Load shapes: the share of the sessions that type, over the time of a run.

A session has a rank between 0 and 1 and types while its rank is below the share. Ranks are spread evenly over the
session numbers, so that every worker's sessions are representative.
"""

import math

from loadtest.traffic.sections import ShapeSettings

# Weyl sequences: the multiples of an irrational number, modulo 1, fill the unit interval evenly for any count. Several
# numbers that are linearly independent over the rationals fill a cube.
_STEPS = ((math.sqrt(5) - 1) / 2, math.sqrt(2) - 1, math.sqrt(3) - 1)
RANK, REGION, READER = range(3)
"""Dimensions over which session numbers are spread."""

_DAY = (
    *(0.06, 0.04, 0.03, 0.03, 0.03, 0.04, 0.08, 0.20, 0.45, 0.80, 1.00, 0.98),
    *(0.75, 0.70, 0.92, 0.97, 0.93, 0.80, 0.50, 0.30, 0.20, 0.16, 0.12, 0.08),
)
"""An office day by the hour from midnight: two peaks with a lunch between them. Assumed."""


def spread(number: int, over: int) -> float:
    """Return a value between 0 and 1 for a session, evenly spread over all numbers; `over` is the dimension."""
    return (0.5 + number * _STEPS[over]) % 1.0


def share_at(shape: ShapeSettings, at_s: float, duration_s: float) -> float:
    """Return the share of the sessions that type at a time of a run, above 0 and at most 1."""
    match shape.kind:
        case "ramp":
            return _ramp(shape, at_s, duration_s)
        case "spike":
            return 1.0 if shape.at_s <= at_s < shape.at_s + (shape.for_s or duration_s) else 1 / shape.factor
        case "day":
            return max(shape.from_share, shape.to_share * _day(at_s / (shape.period_s or duration_s)))
        case "steady":
            return 1.0


def _ramp(shape: ShapeSettings, at_s: float, duration_s: float) -> float:
    """Rise from `at_s` for `for_s`, or to the end, and stay."""
    rising_s = shape.for_s or duration_s - shape.at_s
    done = min(1.0, max(0.0, (at_s - shape.at_s) / rising_s))
    return shape.from_share + (shape.to_share - shape.from_share) * done


def _day(days: float) -> float:
    hours = days % 1.0 * len(_DAY)
    hour = int(hours) % len(_DAY)
    before, after = _DAY[hour], _DAY[(hour + 1) % len(_DAY)]
    return before + (after - before) * (hours - int(hours))
