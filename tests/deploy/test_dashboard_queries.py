"""Every panel shows something: its queries have data in a real Prometheus that scraped real servers under load."""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from completion_server.client.top.readings import BucketHistogram
from tests.support.dashboard_load import SETTINGS, TENANTS, dashboard_load
from tests.support.dashboards import PanelQuery, queries
from tests.support.models import DRAFT
from tests.support.prometheus import Prometheus, Target, require_prometheus, running_prometheus
from tests.support.redis_servers import RedisServer, running
from tests.support.replicas import Replica

REGIONS = ("us-east", "eu-west")
VARIABLES = {
    "region": "(us-east|eu-west)",
    "instance": ".*",
    "tenant": "(acme|globex|other)",
    "__rate_interval": "20s",
    "__range": "60s",
}
TIMEOUT_S = 120.0


@dataclass
class Site:
    """Two regions of one server each, which share a Redis, and the Prometheus that scrapes them."""

    replicas: list[Replica]
    prometheus: Prometheus


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Yield the servers under load, until the module's tests have ended."""
    require_prometheus()
    redis = RedisServer()
    with ExitStack() as stack:
        stack.enter_context(running(redis))
        replicas = []
        for region in REGIONS:
            settings = (
                f"server.region={region}",
                f"engine.draft_model={DRAFT}",
                "limits.max_tokens=512",
                "engine.warm_up=false",
                *SETTINGS,
            )
            replicas.append(Replica(region, redis.address, settings))
            stack.callback(replicas[-1].child.stop)
        for replica in replicas:
            replica.wait()
        targets = [Target(replica.metrics_address) for replica in replicas]
        prometheus = stack.enter_context(running_prometheus(*targets))
        stack.enter_context(dashboard_load([replica.address for replica in replicas]))
        prometheus.wait_scraped()
        yield Site(replicas, prometheus)


def label_sets(prometheus: Prometheus, query: PanelQuery) -> list[set[str]]:
    """Return the labels of each series of a query that has a number."""
    expression = query.expression(VARIABLES)
    if query.is_instant:
        return [set(each.labels) for each in prometheus.query(expression) if not math.isnan(each.value)]
    found = prometheus.query_range(expression, 30.0)
    return [set(labels) for labels, values in found if not all(map(math.isnan, values))]


def is_shown(prometheus: Prometheus, query: PanelQuery) -> bool:
    """Return whether a query has data, with the labels that name its series."""
    found = label_sets(prometheus, query)
    return bool(found) and all(query.legend_labels <= labels for labels in found)


def test_every_query_has_data_with_the_labels_of_its_legend(site: Site) -> None:
    left = list(queries())
    assert len(left) > 100
    deadline = time.monotonic() + TIMEOUT_S
    while left:
        left = [query for query in left if not is_shown(site.prometheus, query)]
        if left and time.monotonic() > deadline:
            missing = "\n".join(f"{query.place}: {query.template}" for query in left)
            pytest.fail(f"no data, or not the labels of the legend:\n{missing}")


def test_regions_and_tenants_are_told_apart(site: Site) -> None:
    by_region = site.prometheus.query("sum by (region) (completion_requests_total)")
    assert {each.labels["region"] for each in by_region} == set(REGIONS)
    by_tenant = site.prometheus.query("sum by (tenant) (completion_tenant_requests_total) > 0")
    assert {each.labels["tenant"] for each in by_tenant} == {*TENANTS, "other"}


def test_percentiles_of_top_are_those_of_prometheus(site: Site) -> None:
    address = site.replicas[0].metrics_address
    for stage in ("queue", "tokenise", "prefill", "decode_token"):
        labels = f'{{instance="{address}", stage="{stage}"}}'
        site.prometheus.wait_for(f"completion_stage_seconds_count{labels} > 0")
        for share in (0.5, 0.95, 0.99):
            buckets = f"completion_stage_seconds_bucket{labels}"
            # One query, so that the percentile is that of these very buckets.
            quantile = f'label_replace(histogram_quantile({share}, {buckets}), "le", "quantile", "", "")'
            found = {each.labels["le"]: each.value for each in site.prometheus.query(f"{quantile} or {buckets}")}
            theirs = found.pop("quantile")
            counts = sorted((float(bound), count) for bound, count in found.items())
            ours = BucketHistogram(*(tuple(each) for each in zip(*counts, strict=True))).quantile(share)
            assert ours == pytest.approx(theirs)
