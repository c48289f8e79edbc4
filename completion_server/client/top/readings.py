"""Metrics of a server at one time, from the text format of Prometheus, and their change between two times. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
_INF = "+Inf"
_COUNTERS = ("_total", "_bucket")
"""Ends of the names of samples that only grow while a server runs."""
_EVERYWHERE = frozenset({"region"})
"""Labels that are the same for all series of a server."""


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


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of a server's metrics at one time, or their changes."""

    uptime_s: float
    """Since the start of the server."""
    values: Mapping[tuple[str, Labels], float] = field(default_factory=dict)
    """By sample name and labels."""

    def has(self, name: str) -> bool:
        """Return whether there is a sample with this name."""
        return any(sample == name for sample, _ in self.values)

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels; 0 if there is none."""
        wanted = labels.items()
        return math.fsum(value for (sample, found), value in self.values.items() if sample == name and wanted <= found)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return the sums of the samples with this name and these labels, by the value of a further label."""
        wanted, sums = labels.items(), dict[str, float]()
        for (sample, found), value in self.values.items():
            if sample == name and wanted <= found:
                key = dict(found).get(label, "")
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def histogram(self, name: str, **labels: str) -> BucketHistogram:
        """Return the sum of the histograms with this name and these labels; empty if there is none."""
        counts = {_bound(text): count for text, count in self.by(f"{name}_bucket", "le", **labels).items()}
        bounds = tuple(sorted(counts))
        return BucketHistogram(bounds, tuple(counts[bound] for bound in bounds))

    def since(self, before: "Reading | None") -> "Reading":
        """Return the changes after `before`. A server that has restarted since, or none before, began at 0."""
        if before is None or before.uptime_s > self.uptime_s or self._has_fallen(before):
            return self
        earlier = before.values
        changes = {series: value - earlier.get(series, 0.0) for series, value in self.values.items()}
        return Reading(self.uptime_s - before.uptime_s, changes)

    def _has_fallen(self, before: "Reading") -> bool:
        """Return whether a counter fell: the server has restarted, and is already up for longer than before."""
        earlier = before.values
        return any(
            value < earlier.get((name, labels), 0.0)
            for (name, labels), value in self.values.items()
            if name.endswith(_COUNTERS)
        )


def parse(text: str, uptime_s: float) -> Reading:
    """Return the samples of a page.

    Raises:
        ValueError: it is not in the text format of Prometheus.

    """
    values: dict[tuple[str, Labels], float] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            labels = frozenset(item for item in sample.labels.items() if item[0] not in _EVERYWHERE)
            values[sample.name, labels] = sample.value
    return Reading(uptime_s, values)


def merged(readings: Iterable[Reading]) -> Reading:
    """Return the sums over several servers; the time is the longest."""
    sums: dict[tuple[str, Labels], float] = {}
    longest_s = 0.0
    for reading in readings:
        longest_s = max(longest_s, reading.uptime_s)
        for series, value in reading.values.items():
            sums[series] = sums.get(series, 0.0) + value
    return Reading(longest_s, sums)


def _bound(text: str) -> float:
    return math.inf if text == _INF else float(text)
