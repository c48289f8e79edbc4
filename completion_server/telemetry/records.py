"""Metrics of the usage records and of the audit log."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class RecordsCollector(Collector):
    """Reads how many records were lost, and whether they can be written, when Prometheus scrapes."""

    def __init__(self, read: Callable[[], Mapping[str, tuple[int, bool]]]) -> None:
        """`read` returns, by kind ("usage", "audit"), the number of lost records and whether writing fails now."""
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        lost_help = "Records without a line of their own, because they could not be written; a later line counts them."
        lost = CounterMetricFamily("completion_records_lost", lost_help, labels=("kind",))
        failing_help = "Whether records can't be written now, as on a full disk."
        failing = GaugeMetricFamily("completion_records_failing", failing_help, labels=("kind",))
        for kind, (num_lost, is_failing) in self._read().items():
            lost.add_metric((kind,), num_lost)
            failing.add_metric((kind,), is_failing)
        yield from (lost, failing)
