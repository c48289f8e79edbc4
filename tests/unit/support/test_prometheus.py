"""The Prometheus of tests scrapes, evaluates rules, refuses bad queries, and is gone at the end."""

from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter

from completion_server.telemetry.metrics_server import MetricsServer
from tests.support.prometheus import Target, require_prometheus, running_prometheus


def test_a_page_is_scraped_and_rules_are_evaluated(tmp_path: Path) -> None:
    require_prometheus()
    registry = CollectorRegistry()
    Counter("things", "Things.", ["kind"], registry=registry).labels("good").inc(3)
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: [{name: g, rules: [{record: things:doubled, expr: 2 * things_total}]}]")
    page = MetricsServer("127.0.0.1", 0, registry)
    try:
        target = Target(f"127.0.0.1:{page.port}", labels={"region": "here"})
        with running_prometheus(target, rules=[rules]) as prometheus:
            (doubled,) = prometheus.wait_for("things:doubled")
            assert (doubled.value, doubled.labels["region"], doubled.labels["kind"]) == (6.0, "here", "good")
            prometheus.wait_scraped()
            ((labels, values),) = prometheus.query_range("things_total", 5)
            assert (labels["kind"], values[-1]) == ("good", 3.0)
            assert prometheus.query("absent_metric") == []
            with pytest.raises(AssertionError, match="parse error"):
                prometheus.query("sum(")
            url = prometheus.url
    finally:
        page.stop()
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{url}/-/ready", timeout=5)
