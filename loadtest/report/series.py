"""A run over time: its slices, joined to as many points as a chart can show."""

import math
from dataclasses import dataclass

import numpy as np

from loadtest.report.sums import Array, Sums, slice_durations_s
from loadtest.stats.run_stats import RunStats

MAX_POINTS = 60
"""More points are noise at the width of the charts."""


@dataclass(frozen=True, slots=True)
class Series:
    """Sums of neighbouring slices; every result is an array with one number per sum."""

    at_s: Array
    """The middle of each sum's time."""
    sums: Sums

    @classmethod
    def of(cls, stats: RunStats, max_points: int = MAX_POINTS) -> "Series":
        """Join the slices to at most `max_points`."""
        durations_s = slice_durations_s(stats)
        each = math.ceil(len(durations_s) / max_points)
        num_points = math.ceil(len(durations_s) / each)
        weights = np.zeros((num_points, len(durations_s)))
        weights[np.arange(len(durations_s)) // each, np.arange(len(durations_s))] = 1
        sums = Sums.of_slices(stats, weights)
        return cls(np.cumsum(sums.duration_s) - sums.duration_s / 2, sums)

    def per_s(self, counter: str) -> Array:
        """Return a counter's rate per second."""
        return self.sums.counter(counter) / self.sums.duration_s
