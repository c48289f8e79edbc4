"""The metrics page: all metrics of a registry, with the labels that are the same for the whole server."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.samples import Sample


class LabelledRegistry(CollectorRegistry):
    """Shows the metrics of another registry with further labels, such as the server's region.

    The code that counts does not know these labels. A sample that has one of them already keeps its own value.
    """

    def __init__(self, source: CollectorRegistry, labels: Mapping[str, str]) -> None:
        """Add `labels` to the metrics of `source`; a label without a value is left out."""
        super().__init__()
        self._source = source
        self._labels = {name: value for name, value in labels.items() if value}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the source with the labels."""
        yield from (_labelled(metric, self._labels) if self._labels else metric for metric in self._source.collect())

    def restricted_registry(self, names: Iterable[str]) -> "_Chosen":  # type: ignore[override]
        """Return the metrics with these names, of whole metrics or of single samples (`?name[]=` on the page)."""
        return _Chosen(self, frozenset(names))


class _Chosen(CollectorRegistry):
    """Some metrics of a registry."""

    def __init__(self, source: CollectorRegistry, names: frozenset[str]) -> None:
        super().__init__()
        self._source = source
        self._names = names

    def collect(self) -> Iterator[Metric]:
        for metric in self._source.collect():
            is_whole = metric.name in self._names
            samples = [each for each in metric.samples if is_whole or each.name in self._names]
            if samples:
                yield _with_samples(metric, samples)


def render(registry: CollectorRegistry, names: Iterable[str] = ()) -> str:
    """Return metrics in the text format of Prometheus; all without `names`. Safe in any thread."""
    chosen = frozenset(names)
    return generate_latest(registry.restricted_registry(chosen) if chosen else registry).decode()


def _labelled(metric: Metric, labels: Mapping[str, str]) -> Metric:
    return _with_samples(metric, [each._replace(labels={**labels, **each.labels}) for each in metric.samples])


def _with_samples(metric: Metric, samples: list[Sample]) -> Metric:
    shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    shown.samples = samples
    return shown
