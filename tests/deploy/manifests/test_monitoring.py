"""Metrics, alerts and dashboards as the cluster gets them, and what Prometheus reaches of the real Envoy."""

import http.client
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.deploy.manifests.network import allowed
from tests.deploy.manifests.policies import GIVEN_SECRETS
from tests.deploy.manifests.targets import loaded, rendered
from tests.support.envoy import ADMIN, Envoy, adapted, cluster_of, load_shipped, require_envoy
from tests.support.kustomize import DEPLOY, Object, of_kind, one
from tests.support.rules import load_rules
from tests.support.runbooks import head, runbooks

KUBECTL_ANNOTATION_BYTES = 262_144
"""kubectl apply keeps a copy of the object in an annotation; all annotations together have this limit."""


def test_each_alert_has_an_address_that_opens_in_a_pager() -> None:
    groups = [
        group for found in of_kind(list(rendered("monitoring")), "PrometheusRule") for group in found["spec"]["groups"]
    ]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    addresses = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in alerts}
    assert addresses.keys() == {rule["alert"] for rule in load_rules() if "alert" in rule}
    for alert, address in addresses.items():
        # render.sh refuses example.com, so an operator can't forget it.
        assert address.startswith("https://CHANGE-ME.example.com/"), address
        assert address.endswith(f"docs/runbooks.md#{alert.lower()}"), address


def test_what_the_runbooks_name_in_their_commands_is_in_the_cluster() -> None:
    objects = [each for target in (OBJECTS, "redis") for each in rendered(target)]
    there = {(each["kind"].lower(), each["metadata"]["name"]) for each in objects}
    there |= {("secret", name) for name in GIVEN_SECRETS}
    labels = {label for each in pod_labels(objects) for label in each.items()}
    commands = [each for entry in runbooks().values() for each in entry.commands if each.startswith("kubectl ")]
    of_ours = [each for each in commands if not each.startswith("kubectl -n ")]
    named = [
        found
        for each in of_ours
        for found in re.findall(
            r"\b(deployment|statefulset|rollout|certificate|scaledobject|podmonitor|secret)[ /]([a-z-]+)", each
        )
    ]
    assert len(named) > 5
    assert set(named) <= there
    selected = {(key, value) for each in of_ours for key, value in re.findall(r"-l (app\S+)=(\S+)", each)}
    assert len(selected) > 2
    assert selected <= labels


def test_the_command_that_asks_at_the_front_doors_runs_in_the_probe_s_pod_with_its_files() -> None:
    defined = re.search(r"^doors\(\) \{.+?; \}$", head(), re.MULTILINE | re.DOTALL)
    assert defined
    script = f'kubectl() {{ printf "%s\\n" "$@"; }}\n{defined[0]}\ndoors'
    typed = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=10, check=True
    ).stdout.split()
    assert typed[:5] == ["exec", "deployment/completion-probe", "--", "completion-server", "probe"]
    probe = one(rendered("regions/us-east"), "Deployment", "completion-probe")
    (container,) = probe["spec"]["template"]["spec"]["containers"]
    assert set(typed[5:]) == {"--once", *(each for each in container["args"] if each.startswith("--tls-"))}


def test_a_pod_on_a_node_is_made_in_a_namespace_that_admits_it() -> None:
    (namespace,) = of_kind(list(rendered(OBJECTS)), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    commands = [each for entry in runbooks().values() for each in entry.commands if " debug " in each]
    assert len(commands) > 1
    assert [each for each in commands if not each.startswith("kubectl -n default debug node/NODE ")] == []


def pod_labels(objects: list[Object]) -> list[dict[str, str]]:
    """Return the labels of the pods that workloads make."""
    workloads = [each for each in objects if each["kind"] in {"Deployment", "StatefulSet"}]
    return [each["spec"]["template"]["metadata"]["labels"] for each in workloads]


def test_each_dashboard_is_in_a_config_map_that_grafana_s_sidecar_takes() -> None:
    objects, files = rendered("monitoring"), list((DEPLOY / "monitoring" / "dashboards").glob("*.json"))
    assert len([each for each in objects if each["kind"] == "ConfigMap"]) == len(files) > 0
    for file in files:
        found = one(objects, "ConfigMap", f"completion-dashboard-{file.stem}")
        assert found["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert found["data"][file.name] == file.read_text("utf-8")
        assert len(json.dumps(found)) < KUBECTL_ANNOTATION_BYTES


ENVOY_FILE = DEPLOY / "envoy" / "envoy.yaml"
OBJECTS = "regions/us-east"


def endpoint_of(monitor: str) -> Object:
    """Return the one endpoint that a PodMonitor scrapes in each pod."""
    (found,) = one(rendered(OBJECTS), "PodMonitor", monitor)["spec"]["podMetricsEndpoints"]
    endpoint: Object = found
    return endpoint


@pytest.mark.parametrize("name", ["completion-server", "completion-edge"])
def test_prometheus_may_reach_the_port_that_each_pod_declares(name: str) -> None:
    objects = rendered(OBJECTS)
    template = one(objects, "Deployment", name)["spec"]["template"]
    selector = one(objects, "PodMonitor", name)["spec"]["selector"]["matchLabels"]
    assert selector.items() <= template["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in template["spec"]["containers"][0]["ports"]}
    port = ports[endpoint_of(name)["port"]]
    reached = {connection for connection in allowed(objects) if connection[1:] == (f"completion/{name}", port)}
    assert reached == {("monitoring/prometheus", f"completion/{name}", port)}


OF_KUBE_PROMETHEUS: Object = {
    "kind": "NetworkPolicy",
    "metadata": {"namespace": "monitoring"},
    "spec": {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        "policyTypes": ["Egress", "Ingress"],
        "egress": [{}],
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "grafana"}}}],
                "ports": [{"port": 9090, "protocol": "TCP"}],
            }
        ],
    },
}
"""What its policy for Prometheus comes to."""


def test_keda_and_argo_rollouts_may_ask_a_prometheus_that_policies_isolate() -> None:
    triggers = one(rendered(OBJECTS), "ScaledObject", "completion-server")["spec"]["triggers"]
    metrics = one(rendered(OBJECTS), "AnalysisTemplate", "completion-server")["spec"]["metrics"]
    addresses = {each["metadata"]["serverAddress"] for each in triggers}
    addresses |= {each["provider"]["prometheus"]["address"] for each in metrics}
    assert addresses == {"http://prometheus-operated.monitoring.svc:9090"}
    before = allowed([OF_KUBE_PROMETHEUS], "monitoring")
    after = allowed([OF_KUBE_PROMETHEUS, loaded("monitoring/kube-prometheus.yaml")], "monitoring")
    assert after - before == {
        (each, "monitoring/prometheus", 9090) for each in ("keda/keda-operator", "argo-rollouts/argo-rollouts")
    }
    assert after > before


def test_a_prometheus_without_policies_gets_none_that_would_isolate_it() -> None:
    assert not of_kind(rendered("monitoring"), "NetworkPolicy")


def test_the_proxies_of_the_gateway_are_scraped_where_envoy_gateway_runs_them() -> None:
    objects = rendered(OBJECTS)
    gateway = one(objects, "Gateway", "completion")["metadata"]
    spec = one(objects, "PodMonitor", "completion-gateway")["spec"]
    assert spec["selector"]["matchLabels"] == {
        "gateway.envoyproxy.io/owning-gateway-name": gateway["name"],
        "gateway.envoyproxy.io/owning-gateway-namespace": gateway["namespace"],
    }
    (source,) = (
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for rule in one(objects, "NetworkPolicy", "completion-edge")["spec"]["ingress"]
        for peer in rule["from"]
        if peer["podSelector"]["matchLabels"].get("app.kubernetes.io/component") == "proxy"
    )
    assert spec["namespaceSelector"] == {"matchNames": [source]}


@contextmanager
def running_envoy(max_connections: int | None = None) -> Iterator[Envoy]:
    """Run the shipped Envoy without replicas."""
    require_envoy()
    shipped = load_shipped(ENVOY_FILE)
    (group,) = cluster_of(shipped, ADMIN)["load_assignment"]["endpoints"]
    assert [each["endpoint"] for each in group["lb_endpoints"]] == [shipped["admin"]]
    document = adapted(shipped, [])
    if max_connections is not None:
        (monitor,) = document["overload_manager"]["resource_monitors"]
        monitor["typed_config"]["max_active_downstream_connections"] = max_connections
    with Envoy.running(document, 0) as running:
        yield running


@pytest.fixture(scope="module")
def envoy() -> Iterator[Envoy]:
    with running_envoy() as running:
        yield running


def ask(envoy: Envoy, method: str, path: str) -> tuple[int, str]:
    """Return the status and the body that the listener of the metrics answers; the path is sent as it is."""
    connection = http.client.HTTPConnection(envoy.metrics_address, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.full
def test_the_real_envoy_shows_its_metrics_to_prometheus(envoy: Envoy) -> None:
    status, page = ask(envoy, "GET", endpoint_of("completion-edge")["path"])
    assert status == 200
    metrics = {family.name: family.samples for family in text_string_to_metric_families(page)}
    healthy = metrics["envoy_cluster_membership_healthy"]
    assert {sample.labels["envoy_cluster_name"]: sample.value for sample in healthy}["replicas"] == 0
    assert "envoy_server_live" in metrics


def counted(envoy: Envoy, name: str) -> float:
    """Return a counter of the cluster of servers, by the name on the page; a parser would add `_total` to it."""
    page = ask(envoy, "GET", endpoint_of("completion-edge")["path"])[1]
    (value,) = re.findall(rf'^{name}{{envoy_cluster_name="replicas"}} (\d+)$', page, re.MULTILINE)
    return float(value)


@pytest.mark.full
def test_the_rules_read_what_the_real_envoy_exports_and_see_that_it_refuses(envoy: Envoy) -> None:
    page = ask(envoy, "GET", endpoint_of("completion-edge")["path"])[1]
    exported = set(re.findall(r"^(envoy_\w+)", page, re.MULTILINE))
    read = {name for rule in load_rules() for name in re.findall(r"\benvoy_(?!listener_ssl)\w+(?=\{)", rule["expr"])}
    assert len(read) > 3
    assert read <= exported
    name = "envoy_cluster_upstream_cx_none_healthy"
    before, sent = counted(envoy, name), 3
    with grpc.insecure_channel(envoy.address) as channel:
        for _ in range(sent):
            request = pb.CompleteRequest(session_id="s", sequence=1)
            with pytest.raises(grpc.RpcError) as refused:
                list(CompletionServiceStub(channel).Complete(request, timeout=10))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert counted(envoy, name) >= before + sent
    assert counted(envoy, "envoy_cluster_upstream_rq_total") == 0


def is_admitted(connection: socket.socket) -> bool:
    """Whether Envoy keeps a connection: it sends its HTTP/2 settings, or closes it."""
    connection.settimeout(10)
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        return connection.recv(64) != b""
    except ConnectionError:
        return False


@pytest.mark.full
def test_an_envoy_that_has_all_its_connections_still_shows_its_metrics() -> None:
    with running_envoy(max_connections=3) as full, ExitStack() as stack:
        host, _, port = full.address.rpartition(":")
        editors = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(6)]
        assert sum(is_admitted(each) for each in editors) == 3
        assert ask(full, "GET", endpoint_of("completion-edge")["path"])[0] == 200


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/stats"),
        ("GET", "/config_dump"),
        ("POST", "/quitquitquit"),
        ("POST", "/drain_listeners"),
        ("POST", "/stats/prometheus"),
        ("GET", "/stats/prometheus/"),
        ("POST", "/stats/prometheus/../../quitquitquit"),
        ("GET", "/stats/prometheus/../../config_dump"),
    ],
)
def test_the_real_envoy_shows_prometheus_nothing_else(envoy: Envoy, method: str, path: str) -> None:
    assert ask(envoy, method, path) == (404, "")
    assert ask(envoy, "GET", endpoint_of("completion-edge")["path"])[0] == 200
