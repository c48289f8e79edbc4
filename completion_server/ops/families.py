"""The metrics that events change, as families of series with plain numbers.

A change takes no lock, and looks up no object of its series. So only one thread at a time may change or collect them.
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import Exemplar, Metric, Sample

from completion_server.core.trace_context import TraceContext

Labels = tuple[str, ...]
"""The labels of a series in the order of their names; () for the only series of a family without labels."""

BUCKETS_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1,
    0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0,
)  # fmt: skip
"""Buckets from 1 ms to 2 s, densest around 200 ms, after which an answer has no value."""


class Values(defaultdict[Labels, float]):
    """The values of a counter or a gauge, by series."""

    def __init__(self, kind: str, name: str, help_text: str, *label_names: str) -> None:
        """`kind` is Prometheus's; the name begins with "completion_" on the page."""
        super().__init__(int)
        self._family, self._label_names = (f"completion_{name}", help_text, kind), label_names
        self.create([] if label_names else [()])

    def create(self, series: Iterable[Labels]) -> None:
        """Show series from the start: Prometheus takes no first increment from a series that it did not know."""
        self.update(dict.fromkeys(series, 0))

    def collect(self) -> Metric:
        """Return the family with its present values."""
        family = Metric(*self._family)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        for labels, value in self.items():
            family.samples.append(Sample(name, dict(zip(self._label_names, labels, strict=True)), value))
        return family


class Histogram(defaultdict[Labels, list[float]]):
    """The samples of a histogram of seconds, by series: their number in each bucket, and at last their sum."""

    def __init__(self, name: str, help_text: str, *label_names: str, buckets_s: tuple[float, ...] = BUCKETS_S) -> None:
        """`buckets_s` are the upper ends of the buckets, without that of the last one."""
        super().__init__(self._zeros)
        self._family, self._label_names = (f"completion_{name}_seconds", help_text, "histogram"), label_names
        self._buckets_s, self._ends = buckets_s, (*map(str, buckets_s), "+Inf")
        self._exemplars: dict[tuple[Labels, int], Exemplar] = {}
        """The last sample of each bucket that links to a trace."""
        self.create([] if label_names else [()])

    def create(self, series: Iterable[Labels]) -> None:
        """Show series from the start."""
        self.update((labels, self._zeros()) for labels in series)

    def observe(self, seconds: float, labels: Labels = (), trace: TraceContext | None = None) -> None:
        """Count a sample, which links to a trace on pages in the OpenMetrics format."""
        bucket, numbers = bisect_left(self._buckets_s, seconds), self[labels]
        numbers[bucket] += 1
        numbers[-1] += seconds
        if trace is not None:
            self._exemplars[labels, bucket] = Exemplar({"trace_id": trace.trace_id}, seconds, time.time())

    def collect(self) -> Metric:
        """Return the family with its present numbers."""
        family = Metric(*self._family)
        for series, (*numbers, seconds) in self.items():
            labels, count = dict(zip(self._label_names, series, strict=True)), 0.0
            for bucket, (end, count) in enumerate(zip(self._ends, accumulate(numbers), strict=True)):
                exemplar = self._exemplars.get((series, bucket))
                family.samples.append(Sample(f"{family.name}_bucket", labels | {"le": end}, count, exemplar=exemplar))
            family.samples.append(Sample(f"{family.name}_count", labels, count))
            family.samples.append(Sample(f"{family.name}_sum", labels, seconds))
        return family

    def _zeros(self) -> list[float]:
        return [0] * (len(self._ends) + 1)
