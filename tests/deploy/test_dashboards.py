"""The dashboards: valid for Grafana's types, and of metrics that exist.

Every panel shows something: its queries have data in a real Prometheus that scraped real servers under load.
"""

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from loadtest.processes.child import Child
from tests.deploy.conftest import SHIPPED
from tests.deploy.gateway import run_gateway
from tests.support.certificates import make_identity_in, revocations_of
from tests.support.dashboard_load import SETTINGS, TENANTS, dashboard_load
from tests.support.envoy import Envoy, adapted, load_shipped
from tests.support.kustomize import DEPLOY
from tests.support.models import DRAFT, TARGET
from tests.support.prometheus import Prometheus, Target, require_prometheus, running_prometheus
from tests.support.redis_servers import RedisServer, free_port, running
from tests.support.rules import write_plain_rules
from tests.support.server import FREE_PORTS, START_TIMEOUT_S, UNHURRIED
from tests.support.server_process import COMMAND, flags

register_default_plugins()

FOLDER = DEPLOY / "monitoring" / "dashboards"
DASHBOARDS = sorted(path.stem for path in FOLDER.glob("*.json"))
REGIONS = ("us-east", "eu-west")
VARIABLES = {
    "region": "(us-east|eu-west)",
    "model_revision": ".*",
    "instance": ".*",
    "tenant": "(acme|globex|other)",
    "__rate_interval": "20s",
    "__range": "60s",
}
TIMEOUT_S = 120.0
POLL_S = 0.2


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard without the rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@dataclass(frozen=True)
class PanelQuery:
    """A query of a panel."""

    place: str
    """The dashboard, the panel and the query's letter."""
    template: str
    """With Grafana's variables."""
    legend: str
    is_instant: bool

    def series(self, prometheus: Prometheus, **chosen: str) -> list[Mapping[str, str]]:
        """Return the labels of each series that has a number. `chosen` are values of variables."""
        text = self.template
        for name, value in sorted((VARIABLES | chosen).items(), key=lambda item: -len(item[0])):
            text = text.replace(f"${name}", value)
        assert "$" not in text, f"{self.place}: a variable is not known: {text}"
        if self.is_instant:
            return [each.labels for each in prometheus.query(text) if not math.isnan(each.value)]
        found = prometheus.query_range(text, 30.0)
        return [labels for labels, values in found if not all(map(math.isnan, values))]

    def is_shown(self, prometheus: Prometheus, **chosen: str) -> bool:
        """Return whether it has data, with the labels that name its series."""
        found, named = self.series(prometheus, **chosen), set(re.findall(r"{{\s*(\w+)\s*}}", self.legend))
        return bool(found) and all(named <= labels.keys() for labels in found)


def queries() -> Iterator[PanelQuery]:
    """Yield the queries of all panels, and of the variables' values."""
    for name in DASHBOARDS:
        dashboard = load(name)
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                assert found is not None, variable["query"]
                selector, label = found.groups()
                template = f"count by ({label}) ({selector})"
                yield PanelQuery(f"{name}: ${variable['name']}", template, f"{{{{{label}}}}}", is_instant=True)
        for panel in panels(dashboard):
            for target in panel["targets"]:
                place = f"{name}: {panel['title']}, {target['refId']}"
                yield PanelQuery(place, target["expr"], target["legendFormat"], target.get("instant", False))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_one_of_grafana_s_and_each_panel_has_its_text_and_unit(name: str) -> None:
    dashboard = load(name)
    # A key that Grafana's types do not know, or in the wrong place, would be dropped.
    kept = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert list(lost(dashboard, kept)) == []
    # Each variable is used in each query, but for the one that names the data source.
    first, *variables = [each["name"] for each in dashboard["templating"]["list"]]
    assert first == "datasource"
    for key, owners in (("id", dashboard["panels"]), ("title", panels(dashboard))):
        found = [each[key] for each in owners]
        assert len(set(found)) == len(found), "Grafana mixes up panels with one id"
    assert all(panel["title"].strip() for panel in dashboard["panels"])
    for panel in panels(dashboard):
        assert panel["description"].strip(), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0, panel["title"]
        for owner in (panel, *panel["targets"]):
            assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        for target in panel["targets"]:
            assert all(f"${name}" in target["expr"] for name in variables), target["expr"]


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Yield the places of what is not the same in `kept`, which may have more keys."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept.get(key), f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif given != kept:
        yield f"{place}: {given!r} became {kept!r}"


def test_dashboards_have_names_of_their_own_and_show_what_the_alerts_count() -> None:
    """Grafana replaces a dashboard by another one with its uid. Prefetches are in no objective."""
    dashboards = [load(name) for name in DASHBOARDS]
    assert len({each["uid"] for each in dashboards}) == len({each["title"] for each in dashboards}) == len(dashboards)
    read = [query for query in queries() if "completion_ttft_seconds_bucket" in query.template]
    assert len(read) > 5
    assert [query.place for query in read if 'trigger!="prefetch"' not in query.template] == []
    linked = {
        panel["title"]
        for panel in panels(load("serving"))
        if panel["type"] == "timeseries" and any(target.get("exemplar") for target in panel["targets"])
    }
    assert linked == {"TTFT", *(f"Stages over time, {share}" for share in ("p50", "p95", "p99"))}, "links to traces"


@contextmanager
def front_door(addresses: list[str], folder: Path) -> Iterator[tuple[Envoy, list[Target]]]:
    """Run an Envoy before servers, one before it that ends TLS, and a probe; yield the first one and what to scrape.

    The probe reaches one of its two front doors: the certificate is not of the other name.
    """
    server, authority = (make_identity_in(folder, name) for name in ("server", "authority"))
    client = make_identity_in(folder, "probe", issuer=authority)
    certificates = authority.certificate.read_bytes(), revocations_of(authority)
    with ExitStack() as stack:
        edge = stack.enter_context(Envoy.running(adapted(load_shipped(SHIPPED), addresses), len(addresses)))
        gateway = stack.enter_context(run_gateway(edge.address, server.certificate, *certificates))
        port, listen = gateway.envoy.address.rpartition(":")[2], f"127.0.0.1:{free_port()}"
        doors = f"--server=127.0.0.1:{port},localhost:{port}"
        tls = (f"--tls-ca={server.certificate}", f"--tls-cert={client.certificate}", f"--tls-key={client.key}")
        command = (*COMMAND, "probe", "--interval=1", f"--metrics-listen={listen}", doors, *tls)
        stack.enter_context(Child("probe", command))
        path = {"__metrics_path__": "/stats/prometheus"}
        proxies = {"completion-edge": edge, "completion/completion-gateway": gateway.envoy}
        targets = [Target(each.metrics_address, job, path) for job, each in proxies.items()]
        yield edge, [*targets, Target(listen, "completion-probe")]


def start_server(name: str, redis_address: str, settings: Sequence[str]) -> Child:
    """Start a server in a process, whose own metrics the dashboards show, too."""
    redis = f'redis.addresses=["{redis_address}"]' if redis_address else "redis.addresses=[]"
    settings = (
        *FREE_PORTS, *UNHURRIED, "engine.kind=scripted", f"engine.model={TARGET}", "admission.trust_user_names=true",
        "admission.user_requests_per_s=0", f"redis.replica_id={name}", redis, *settings,
    )  # fmt: skip
    return Child(name, (*COMMAND, "serve", "--json", *flags(*settings)), is_piped=True)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Yield the Prometheus that scrapes two regions of one server each under load, which share a Redis.

    Their models differ in nothing but the revision. A third server, with authentication, has no
    load.
    """
    require_prometheus()
    folder = tmp_path_factory.mktemp("dashboards")
    revised = folder / TARGET.name
    shutil.copytree(TARGET, revised)
    with (revised / "config.json").open("a", encoding="utf-8") as config:
        config.write("\n")
    redis = RedisServer()
    with ExitStack() as stack:
        stack.enter_context(running(redis))
        replicas = []
        for region, model in zip(REGIONS, (TARGET, revised), strict=True):
            settings = (
                f"server.region={region}",
                f"engine.model={model}",
                f"engine.draft_model={DRAFT}",
                "limits.max_tokens=512",
                "engine.warm_up=false",
                *SETTINGS,
            )
            replicas.append(start_server(region, redis.address, settings))
            stack.callback(replicas[-1].stop)
        settings = (f"server.region={REGIONS[1]}", f"auth.keys_file={folder / 'keys.json'}")
        verifying = start_server("verifying", "", settings)
        stack.callback(verifying.stop)
        ready = [each.read_json(START_TIMEOUT_S) for each in (*replicas, verifying)]
        targets = [Target(each["metrics_address"].removeprefix("http://").removesuffix("/metrics")) for each in ready]
        addresses = [each["address"] for each in ready[:-1]]
        edge, proxies = stack.enter_context(front_door(addresses, folder))
        rules = write_plain_rules(folder, interval="1s")[:1]  # those that record
        prometheus = stack.enter_context(running_prometheus(*targets, *proxies, rules=rules))
        stack.enter_context(dashboard_load(addresses, lambda: edge.health()))
        prometheus.wait_scraped()
        yield prometheus


def wait_shown(left: list[PanelQuery], is_shown: Callable[[PanelQuery], bool]) -> None:
    """Wait until all queries are shown."""
    assert left
    deadline = time.monotonic() + TIMEOUT_S
    while left := [query for query in left if not is_shown(query)]:
        missing = "\n".join(f"{query.place}: {query.template}" for query in left)
        assert time.monotonic() < deadline, f"no data, or not the labels of the legend:\n{missing}"
        time.sleep(POLL_S)


@pytest.mark.full
def test_every_query_has_data_with_the_labels_of_its_legend(prometheus: Prometheus) -> None:
    wait_shown(list(queries()), lambda query: query.is_shown(prometheus))


@pytest.mark.full
def test_each_panel_of_servers_shows_the_chosen_revision_alone_and_two_side_by_side(prometheus: Prometheus) -> None:
    builds = prometheus.query("completion_build_info")
    pairs = {(each.labels["region"], each.labels["model_revision"]) for each in builds}
    (old,) = (revision for region, revision in pairs if region == REGIONS[0])
    (new,) = {revision for _, revision in pairs} - {old}
    chosen = [query for query in queries() if "$model_revision" in query.template]
    assert [each.place for each in chosen if each.series(prometheus, region=REGIONS[0], model_revision=new)] == []
    wait_shown(chosen, lambda query: any(query.is_shown(prometheus, model_revision=each) for each in (old, new)))
    compared = [query for query in queries() if query.legend == "{{model_revision}}" and "$" not in query.place]
    wait_shown(compared, lambda query: {labels["model_revision"] for labels in query.series(prometheus)} == {old, new})


@pytest.mark.full
def test_regions_and_tenants_are_told_apart(prometheus: Prometheus) -> None:
    by_region = prometheus.query("sum by (region) (completion_requests_total)")
    assert {each.labels["region"] for each in by_region} == set(REGIONS)
    # Which tenant asks next, the load decides.
    prometheus.wait_for(f"count(sum by (tenant) (completion_tenant_requests_total) > 0) == {len(TENANTS) + 1}")
    by_tenant = prometheus.query("sum by (tenant) (completion_tenant_requests_total) > 0")
    assert {each.labels["tenant"] for each in by_tenant} == {*TENANTS, "other"}
