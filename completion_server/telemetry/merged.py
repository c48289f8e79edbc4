"""The metrics of a server with several processes, as those of one.

Counters and histograms are added, those of processes that have ended included, so that they never fall. Gauges are
added where they count something, else the largest is shown.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from completion_server.telemetry.metrics_server import PageRegistry

_ADDED_GAUGES = frozenset(
    f"completion_{name}"
    for name in ("live_sessions", "queued_requests", "running_requests", "cache_bytes", "cache_entries", "leases")
)
_OWN = ("completion_engine_", "completion_speculation_", "completion_num_speculative_tokens", "completion_build_info")
"""Begin the names of metrics of the engine and of the server as a whole, which the parent alone knows."""
_OF_ALL = frozenset(("completion_engine_generated_tokens", "completion_engine_aborted_tokens"))
"""Those of them that each process counts for its own requests."""
_PROCESS = ("process_", "python_")
"""Begin the names of metrics of the operating system's processes, which are shown for each."""

_TRIES = 5
_Key = tuple[str, tuple[tuple[str, str], ...]]


class MergedRegistry(PageRegistry):
    """Shows the metrics of this process and of others as those of one."""

    def __init__(self, own: CollectorRegistry, others: Callable[[], Mapping[str, str]]) -> None:
        """Add what `others` returns, pages by the name of their process, to `own`."""
        super().__init__()
        self._own = own
        self._others = others
        self._ended = _Sums()

    def ended(self, page: str) -> None:
        """Keep what a process that has ended had counted. `others` must leave it out from now on."""
        kept = _Sums()  # a new object: `collect` reads the one before in another thread
        for metric in self._ended.metrics():
            kept.add(metric)
        for metric in text_string_to_metric_families(page):
            if metric.type in {"counter", "histogram"} and _is_added(metric) and not metric.name.startswith(_PROCESS):
                kept.add(metric)
        self._ended = kept

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all."""
        sums = _Sums()
        for metric in self._own.collect():
            sums.add(_of_process(metric, "parent"))
        for _ in range(_TRIES):  # one that ends meanwhile would be left out, or be added twice
            ended, pages = self._ended, self._others()
            if self._ended is ended:
                break
        for metric in ended.metrics():
            sums.add(metric)
        for name, page in pages.items():
            for metric in text_string_to_metric_families(page):
                if _is_added(metric):
                    sums.add(_of_process(metric, name))
        yield from sums.metrics()


class _Sums:
    """Metrics of several processes, added up."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._samples: dict[str, dict[_Key, Sample]] = {}

    def add(self, metric: Metric) -> None:
        samples = self._samples.setdefault(metric.name, {})
        self._metrics.setdefault(metric.name, metric)
        is_added = metric.type != "gauge" or metric.name in _ADDED_GAUGES
        for each in metric.samples:
            key = each.name, tuple(sorted(each.labels.items()))
            before = samples.get(key)
            if before is None:
                samples[key] = each
            elif is_added:
                samples[key] = before._replace(value=before.value + each.value)
            else:
                samples[key] = max(before, each, key=lambda sample: sample.value)

    def metrics(self) -> Iterator[Metric]:
        for name, metric in self._metrics.items():
            shown = Metric(name, metric.documentation, metric.type, metric.unit)
            shown.samples = list(self._samples[name].values())
            yield shown


def _is_added(metric: Metric) -> bool:
    """Return whether a front end's metric counts beside the parent's."""
    return metric.name in _OF_ALL or not metric.name.startswith(_OWN)


def _of_process(metric: Metric, name: str) -> Metric:
    """Return a metric with the name of its process, if it is one of the operating system's."""
    if not metric.name.startswith(_PROCESS):
        return metric
    shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    shown.samples = [each._replace(labels={**each.labels, "process": name}) for each in metric.samples]
    return shown
