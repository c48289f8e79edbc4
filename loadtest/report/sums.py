"""Weighted sums of tallies: one weighting for a report, one for each point of a chart, a thousand for a bootstrap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from loadtest.stats import RunStats, Tally

Array = npt.NDArray[np.float64]

MAX_POINTS = 60
"""More points are noise at the width of the charts."""


class Sums:
    """Tallies under R weightings. Every result is an array of R numbers, with nan for missing data."""

    def __init__(self, tallies: Sequence[Tally], durations_s: Array, weights: Array) -> None:
        """Take n tallies, their durations, and weights of shape (R, n)."""
        self._tallies = tallies
        self._weights = weights
        self._cumulative: dict[str, tuple[Array, Array]] = {}
        self.duration_s: Array = weights @ durations_s

    @classmethod
    def of_total(cls, stats: RunStats) -> Self:
        """Return the sum of the whole run."""
        return cls([stats.total], np.array([stats.duration_s]), np.ones((1, 1)))

    @classmethod
    def of_slices(cls, stats: RunStats, weights: Array | None = None) -> Self:
        """Return weighted sums of the slices; without weights their plain sum."""
        durations_s = slice_durations_s(stats)
        tallies = [stats.slices[place] if place < len(stats.slices) else Tally(2) for place in range(len(durations_s))]
        return cls(tallies, durations_s, np.ones((1, len(tallies))) if weights is None else weights)

    def counter(self, name: str) -> Array:
        """Return the sums of a counter; 0 if it was never counted."""
        return self._weights @ np.array([tally.counters.get(name, 0) for tally in self._tallies], dtype=np.float64)

    def num_recorded(self, histogram: str) -> Array:
        """Return the number of times in a histogram."""
        _values, cumulative = self._cumulate(histogram)
        return cumulative[:, -1] if cumulative.shape[1] else np.zeros(len(cumulative))

    def percentile_ms(self, histogram: str, percent: float) -> Array:
        """Return a percentile in milliseconds by HDR's rule: the first value that the given share does not exceed."""
        values, cumulative = self._cumulate(histogram)
        if not len(values):
            return np.full(len(cumulative), np.nan)
        totals = cumulative[:, -1]
        wanted = np.maximum(1, np.floor(percent * totals / 100 + 0.5))
        places = np.minimum((cumulative < wanted[:, None]).sum(axis=1), len(values) - 1)
        return np.where(totals > 0, values[places], np.nan)

    def _cumulate(self, name: str) -> tuple[Array, Array]:
        """Return the recorded values, rising, and the cumulative counts of shape (R, values)."""
        if name not in self._cumulative:
            arrays = [tally.histograms[name].arrays() if name in tally.histograms else None for tally in self._tallies]
            found = [each[0] for each in arrays if each is not None]
            values = np.unique(np.concatenate(found)) if found else np.empty(0)
            counts = np.zeros((len(self._tallies), len(values)))
            for row, each in zip(counts, arrays, strict=True):
                if each is not None:
                    row[np.searchsorted(values, each[0])] = each[1]
            self._cumulative[name] = values, np.cumsum(self._weights @ counts, axis=1)
        return self._cumulative[name]


def slice_durations_s(stats: RunStats) -> Array:
    """Return the duration of each slice of a run; the last one may be shorter."""
    num_slices = max(1, int(np.ceil(stats.duration_s / stats.slice_s - 1e-9)))
    if len(stats.slices) > num_slices:  # blocks that end within a slice
        return np.full(len(stats.slices), stats.duration_s / len(stats.slices))
    durations_s = np.full(num_slices, stats.slice_s)
    durations_s[-1] = stats.duration_s - stats.slice_s * (num_slices - 1)
    return durations_s


def ratio(some: Array, whole: Array) -> Array:
    """Return some / whole; nan where `whole` is 0."""
    found: Array = np.divide(some, whole, out=np.full(np.shape(whole), np.nan), where=whole != 0)
    return found


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
