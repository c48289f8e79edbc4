from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from completion_server.telemetry.metrics_server import MetricsServer
from completion_server.telemetry.page import LabelledRegistry, render


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    seconds = Histogram("stage_seconds", "Time.", ["stage"], buckets=(0.1, 1.0), registry=registry)
    seconds.labels("queue").observe(0.05, exemplar={"trace_id": "abc"})
    Counter("requests", "Requests.", registry=registry).inc(3)
    Gauge("elsewhere", "A gauge with a region of its own.", ["region"], registry=registry).labels("moon").set(1)
    return registry


def test_every_sample_has_the_region(registry: CollectorRegistry) -> None:
    page = LabelledRegistry(registry, {"region": "us-east"})
    samples = [sample for metric in page.collect() for sample in metric.samples]
    assert {sample.labels["region"] for sample in samples if sample.name != "elsewhere"} == {"us-east"}
    assert 'requests_total{region="us-east"} 3.0' in render(page)
    assert 'elsewhere{region="moon"} 1.0' in render(page)  # it keeps its own
    assert registry.get_sample_value("requests_total") == 3.0  # the source is as it was


def test_without_a_region_there_is_no_label(registry: CollectorRegistry) -> None:
    assert "requests_total 3.0" in render(LabelledRegistry(registry, {"region": ""}))


def test_exemplars_stay(registry: CollectorRegistry) -> None:
    text = generate_openmetrics(LabelledRegistry(registry, {"region": "us-east"})).decode()
    assert '# {trace_id="abc"} 0.05' in text


@pytest.mark.parametrize(
    ("names", "shown", "hidden"),
    [
        (("stage_seconds",), ("stage_seconds_bucket", "stage_seconds_sum"), ("requests_total", "elsewhere")),
        (("requests_total",), ("requests_total",), ("stage_seconds", "elsewhere")),
        (("unknown",), (), ("requests_total", "stage_seconds")),
    ],
)
def test_metrics_are_chosen_by_name(
    registry: CollectorRegistry, names: tuple[str, ...], shown: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    text = render(LabelledRegistry(registry, {}), names)
    assert all(name in text for name in shown)
    assert not any(name in text for name in hidden)


def test_the_page_serves_the_region_and_a_choice(registry: CollectorRegistry) -> None:
    server = MetricsServer("127.0.0.1", 0, LabelledRegistry(registry, {"region": "us-east"}))
    try:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/metrics?name[]=requests_total")
        text = connection.getresponse().read().decode()
        connection.close()
    finally:
        server.stop()
    assert 'requests_total{region="us-east"} 3.0' in text
    assert "stage_seconds" not in text
