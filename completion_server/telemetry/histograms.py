"""Histograms that are cheap to add to, for what happens several times in each request.

The Prometheus client's own take a lock for each of three steps and look for the bucket from the lowest on.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """The samples of one series. One thread adds; another one may read at any time, and misses one sample at most."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Begin without samples. `bounds` are the upper ends of all buckets but the last, which has none."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: list[Exemplar | None] = [None] * len(self._counts)
        self._total = 0.0

    def observe(self, value: float, exemplar: dict[str, str] | None = None) -> None:
        """Add a sample. `exemplar` has the label that links it to a trace, if there is one."""
        at = bisect_left(self._bounds, value)
        self._counts[at] += 1
        self._total += value
        if exemplar:
            self._exemplars[at] = Exemplar(exemplar, value, time.time())

    def add_to(self, family: HistogramMetricFamily, label: str) -> None:
        """Add the series to a family of metrics, under the value of its label."""
        buckets = [
            (bound, count) if exemplar is None else (bound, count, exemplar)
            for bound, count, exemplar in zip(
                (*map(floatToGoString, self._bounds), "+Inf"), accumulate(self._counts), self._exemplars, strict=True
            )
        ]
        family.add_metric([label], buckets, self._total)


class FastHistogram(Collector):
    """A histogram with one label, whose values are known."""

    def __init__(
        self,
        name: str,
        help_text: str,
        label: str,
        values: Iterable[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Register the series of all values of the label. `buckets` has the upper ends of all buckets but the last."""
        self._name, self._help, self._label = name, help_text, label
        self.series = {value: Series(buckets) for value in values}
        """By the value of the label."""
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        family = HistogramMetricFamily(self._name, self._help, labels=(self._label,))
        for value, series in self.series.items():
            series.add_to(family, value)
        yield family
