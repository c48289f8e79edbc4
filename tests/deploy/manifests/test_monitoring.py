"""Metrics, alerts and dashboards as the cluster gets them, and who may reach whom for them."""

import re

import pytest

from tests.deploy.manifests.network import allowed
from tests.deploy.manifests.policies import GIVEN_SECRETS
from tests.deploy.manifests.targets import EAST, container_of, loaded, rendered
from tests.support.kustomize import DEPLOY, Object, of_kind, one
from tests.support.rules import load_rules
from tests.support.runbooks import runbooks, typed


def test_each_alert_has_an_address_that_opens_in_a_pager() -> None:
    specs = [each["spec"] for each in of_kind(rendered("monitoring"), "PrometheusRule")]
    rules = [rule for spec in specs for group in spec["groups"] for rule in group["rules"]]
    addresses = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule}
    assert addresses.keys() == {rule["alert"] for rule in load_rules() if "alert" in rule}
    for alert, address in addresses.items():
        # render.sh refuses example.com, so an operator can't forget it.
        assert address.startswith("https://CHANGE-ME.example.com/"), address
        assert address.endswith(f"docs/runbooks.md#{alert.lower()}"), address


def test_what_the_runbooks_name_in_their_commands_is_in_the_cluster() -> None:
    calls = typed([command for entry in runbooks().values() for command in entry.commands])
    objects = [each for target in (EAST, "redis") for each in rendered(target)]
    there = {(each["kind"].lower(), each["metadata"]["name"]) for each in objects}
    there |= {("secret", name) for name in GIVEN_SECRETS}
    of_ours = "\n".join(each for each in calls if not each.startswith("kubectl -n "))
    kinds = "deployment|statefulset|rollout|certificate|scaledobject|podmonitor|secret"
    named = re.findall(rf"\b({kinds})[ /]([a-z-]+)", of_ours)
    assert len(named) > 5
    assert set(named) <= there
    templates = [each["spec"]["template"] for each in of_kind(objects, "Deployment", "StatefulSet")]
    labels = {label for each in templates for label in each["metadata"]["labels"].items()}
    selected = set(re.findall(r"-l (app\S+)=(\S+)", of_ours))
    assert len(selected) > 2
    assert selected <= labels
    # The servers' namespace admits no pod on a node.
    debugged = [each for each in calls if " debug " in each]
    assert len(debugged) > 1
    assert all(each.startswith("kubectl -n default debug node/NODE ") for each in debugged)


def test_the_command_that_asks_at_the_front_doors_runs_in_the_probe_s_pod_with_its_files() -> None:
    (call,) = typed(["doors"])
    command, options = call.partition(" --once ")[::2]
    assert command == "kubectl exec deployment/completion-probe -- completion-server probe"
    container = container_of("completion-probe")
    assert set(options.split()) == {each for each in container["args"] if each.startswith("--tls-")}


def test_each_dashboard_is_in_a_config_map_that_grafana_s_sidecar_takes() -> None:
    objects, files = rendered("monitoring"), list((DEPLOY / "monitoring" / "dashboards").glob("*.json"))
    assert len([each for each in objects if each["kind"] == "ConfigMap"]) == len(files) > 0
    for file in files:
        found = one(objects, "ConfigMap", f"completion-dashboard-{file.stem}")
        assert found["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert found["data"][file.name] == file.read_text("utf-8")


@pytest.mark.parametrize("name", ["completion-server", "completion-edge"])
def test_prometheus_may_reach_the_port_that_each_pod_declares(name: str) -> None:
    template = one(rendered(EAST), "Deployment", name)["spec"]["template"]
    monitor = one(rendered(EAST), "PodMonitor", name)["spec"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in template["spec"]["containers"][0]["ports"]}
    (endpoint,) = monitor["podMetricsEndpoints"]
    target = (f"completion/{name}", ports[endpoint["port"]])
    reached = {each for each in allowed(rendered(EAST)) if each[1:] == target}
    assert reached == {("monitoring/prometheus", *target)}


OF_KUBE_PROMETHEUS: Object = {
    "kind": "NetworkPolicy",
    "metadata": {"namespace": "monitoring"},
    "spec": {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        "policyTypes": ["Egress", "Ingress"],
        "egress": [{}],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "grafana"}}}]}],
    },
}
"""What its policy for Prometheus comes to."""


def test_keda_and_argo_rollouts_may_ask_a_prometheus_that_policies_isolate() -> None:
    triggers = one(rendered(EAST), "ScaledObject", "completion-server")["spec"]["triggers"]
    metrics = one(rendered(EAST), "AnalysisTemplate", "completion-server")["spec"]["metrics"]
    addresses = {each["metadata"]["serverAddress"] for each in triggers}
    addresses |= {each["provider"]["prometheus"]["address"] for each in metrics}
    assert addresses == {"http://prometheus-operated.monitoring.svc:9090"}
    before = allowed([OF_KUBE_PROMETHEUS], "monitoring")
    after = allowed([OF_KUBE_PROMETHEUS, loaded("monitoring/kube-prometheus.yaml")], "monitoring")
    askers = ("keda/keda-operator", "argo-rollouts/argo-rollouts")
    assert after - before == {(each, "monitoring/prometheus", 9090) for each in askers}
    assert after > before
    assert not of_kind(rendered("monitoring"), "NetworkPolicy"), "one would isolate a Prometheus without any"


def test_the_proxies_of_the_gateway_are_scraped_where_envoy_gateway_runs_them() -> None:
    gateway = one(rendered(EAST), "Gateway", "completion")["metadata"]
    spec = one(rendered(EAST), "PodMonitor", "completion-gateway")["spec"]
    assert spec["selector"]["matchLabels"] == {
        "gateway.envoyproxy.io/owning-gateway-name": gateway["name"],
        "gateway.envoyproxy.io/owning-gateway-namespace": gateway["namespace"],
    }
    (namespace,) = spec["namespaceSelector"]["matchNames"]
    policy = one(rendered(EAST), "NetworkPolicy", "completion-edge")["spec"]
    peers = [peer for rule in policy["ingress"] for peer in rule["from"] if "'proxy'" in str(peer)]
    spaces = [peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in peers]
    assert spaces == [namespace]
