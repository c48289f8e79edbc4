"""Metrics that are read from the parts of the server when Prometheus scrapes."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from completion_server.engine.speculation.figures import SpeculationTotals

_HELP = {
    "cache_bytes": "Memory of the completions that this process keeps.",
    "cache_entries": "Completions that this process keeps.",
    "slots": "Requests that may be in the engine now; the server adapts their number to the engine's load.",
    "num_speculative_tokens": "Draft tokens (K) of a step with as many generations as run now.",
}
"""Help texts of gauges whose names don't explain them."""


class Snapshot(Collector):
    """Reads the state of the parts when Prometheus scrapes, so that there are no copies to keep up to date."""

    def __init__(self, gauges: dict[str, Callable[[], float]], counters: dict[str, Callable[[], float]]) -> None:
        """Read `gauges` and `counters`, by metric name."""
        self._gauges = gauges
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        for name, read in self._gauges.items():
            help_text = _HELP.get(name) or name.replace("_", " ").capitalize() + "."
            yield GaugeMetricFamily(f"completion_{name}", help_text, value=read())
        for name, read in self._counters.items():
            yield CounterMetricFamily(f"completion_{name}", name.replace("_", " ").capitalize() + ".", value=read())


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
