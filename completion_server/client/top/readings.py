"""Metrics of a server at one time, from the text format of Prometheus, and their change between two times. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from completion_server.client.top.histogram import BucketHistogram

Labels = frozenset[tuple[str, str]]
_INF = "+Inf"
_COUNTERS = ("_total", "_bucket")
"""Ends of the names of samples that only grow while a server runs."""
_EVERYWHERE = frozenset({"region"})
"""Labels that are the same for all series of a server."""


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
