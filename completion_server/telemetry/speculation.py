"""Metrics of speculative decoding by K and by position in a draft."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from completion_server.speculation.figures import SpeculationTotals


class SpeculationCollector(Collector):
    """Reads the totals when Prometheus scrapes."""

    def __init__(self, totals: SpeculationTotals) -> None:
        """Show `totals`."""
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield steps by K, and drafted and accepted tokens by K and position, which counts from 1."""
        steps = CounterMetricFamily(
            "completion_speculation_steps", "Engine steps, by K, the length of their longest draft.", labels=("k",)
        )
        by_position = ("k", "position")
        drafted = CounterMetricFamily(
            "completion_speculation_drafted_tokens", "Draft tokens verified, by K and position.", labels=by_position
        )
        accepted = CounterMetricFamily(
            "completion_speculation_accepted_tokens", "Draft tokens accepted, by K and position.", labels=by_position
        )
        for k, totals in self._totals.read():
            steps.add_metric((str(k),), totals.num_steps)
            for position in range(k):
                labels = str(k), str(position + 1)
                drafted.add_metric(labels, totals.drafted[position])
                accepted.add_metric(labels, totals.accepted[position])
        yield from (steps, drafted, accepted)
