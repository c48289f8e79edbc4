"""Histograms as Prometheus keeps them: cumulative counts by upper bound. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class BucketHistogram:
    """How many values were at most each bound."""

    bounds: tuple[float, ...] = ()
    """Upper bounds, ascending; the last one is infinity."""
    counts: tuple[float, ...] = ()
    """Values up to each bound, those of smaller bounds included."""

    @property
    def num_values(self) -> float:
        """All values."""
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: "BucketHistogram") -> "BucketHistogram":
        """Return the values that came after `before`, an earlier state of the same histogram."""
        earlier = dict(zip(before.bounds, before.counts, strict=True))
        counts = (count - earlier.get(bound, 0.0) for bound, count in zip(self.bounds, self.counts, strict=True))
        return BucketHistogram(self.bounds, tuple(counts))

    @classmethod
    def merged(cls, histograms: Iterable[Self]) -> "BucketHistogram":
        """Return the values of several histograms together, by the bounds that all of them have.

        Servers of two versions may have different bounds.
        """
        known = [each for each in histograms if each.bounds]
        if not known:
            return BucketHistogram()
        common = set(known[0].bounds).intersection(*(each.bounds for each in known[1:]))
        bounds = tuple(sorted(common))
        by_bound = [dict(zip(each.bounds, each.counts, strict=True)) for each in known]
        return BucketHistogram(bounds, tuple(math.fsum(each[bound] for each in by_bound) for bound in bounds))

    def quantile(self, share: float) -> float | None:
        """Return the value that `share` (0 to 1) of the values do not exceed; None without values.

        Linear within a bucket, from 0 in the first one, as Prometheus's `histogram_quantile`. A value beyond the last
        finite bound is given as that bound.
        """
        if self.num_values <= 0:
            return None
        rank = share * self.num_values
        at = next(place for place, count in enumerate(self.counts) if count >= rank)
        if math.isinf(self.bounds[at]):
            return self.bounds[at - 1] if at else None
        below, start = (self.counts[at - 1], self.bounds[at - 1]) if at else (0.0, 0.0)
        in_bucket = self.counts[at] - below
        if in_bucket <= 0:  # rank 0, and nothing in the first bucket
            return start
        return start + (self.bounds[at] - start) * (rank - below) / in_bucket
