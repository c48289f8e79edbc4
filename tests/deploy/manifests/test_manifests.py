"""What kustomize makes of deploy/ is valid for Kubernetes, keeps the policies, and each check catches a fault."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import ValidationError, validate

from tests.deploy.manifests import policies
from tests.deploy.manifests.network import allowed
from tests.deploy.manifests.policies import POLICIES, Policy
from tests.deploy.manifests.targets import TARGETS, rendered
from tests.support import custom_resources
from tests.support.dns_endpoints import faults_of_dns_endpoint
from tests.support.kustomize import DEPLOY, Object, name_of, one

VERSIONS = ("1.35", "1.36", "1.37")
"""The three that Kubernetes maintained when this was written."""
EXCEPTIONS = {policies.rollouts: "no-spare-gpu"}
"""Components that exist to break a policy."""

Change = Callable[[list[Object]], None]


def distinct_objects() -> dict[str, Object]:
    """Return the objects of all targets, each once."""
    found = {}
    for target in TARGETS:
        for each in rendered(target):
            found.setdefault(json.dumps(each, sort_keys=True), each)
    return found


def broken(target: str, change: Change) -> list[Object]:
    """Return a copy of a target's objects after a change."""
    objects = deepcopy(list(rendered(target)))
    change(objects)
    return objects


def pod_of(objects: list[Object], name: str = "completion-server", kind: str = "Deployment") -> Object:
    found: Object = one(objects, kind, name)["spec"]["template"]["spec"]
    return found


def server_of(objects: list[Object]) -> Object:
    found: Object = pod_of(objects)["containers"][0]
    return found


def kubernetes_of(objects: list[Object]) -> Object:
    found: Object = one(objects, "EnvoyProxy", "completion")["spec"]["provider"]["kubernetes"]
    return found


def is_custom(found: Object) -> bool:
    return custom_resources.is_known(found) or found["kind"] == "DNSEndpoint"


def gateway_class() -> Object:
    found: Object = yaml.safe_load((DEPLOY / "components" / "edge" / "gateway-class.yaml").read_text(encoding="utf-8"))
    return found


def test_the_gateway_is_of_the_class_that_the_readme_makes() -> None:
    made = gateway_class()["metadata"]
    assert made == {"name": one(rendered("regions/us-east"), "Gateway", "completion")["spec"]["gatewayClassName"]}
    assert "kubectl apply -f deploy/components/edge/gateway-class.yaml" in (DEPLOY / "README.md").read_text("utf-8")


def test_every_object_is_strictly_valid_in_three_versions() -> None:
    objects = [each for each in distinct_objects().values() if not is_custom(each)]
    assert {"Deployment", "StatefulSet", "NetworkPolicy", "Job"} <= {each["kind"] for each in objects}
    for version in VERSIONS:
        for each in objects:
            assert validate(each, version, strict=True) == version, name_of(each)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["spec"].update(minReadySecond=3),
        lambda found: found["spec"]["template"]["spec"]["containers"][0].update(image=3),
        lambda found: found["spec"].pop("selector"),
    ],
    ids=["unknown field", "wrong type", "missing field"],
)
def test_an_invalid_object_is_found(change: Callable[[Object], object]) -> None:
    found = deepcopy(one(rendered("regions/us-east"), "Deployment", "completion-server"))
    change(found)
    for version in VERSIONS:
        with pytest.raises(ValidationError):
            validate(found, version, strict=True)


def test_custom_resources_are_valid_by_the_types_of_their_projects(tmp_path: Path) -> None:
    objects = [each for each in distinct_objects().values() if custom_resources.is_known(each)] + [gateway_class()]
    kinds = {"Rollout", "AnalysisTemplate", "ScaledObject", "Certificate", "Issuer", "Gateway"}
    kinds |= {"PodMonitor", "PrometheusRule"}
    routes = {
        "GRPCRoute",
        "HTTPRoute",
        "EnvoyProxy",
        "GatewayClass",
        "SecurityPolicy",
        "ClientTrafficPolicy",
        "BackendTrafficPolicy",
    }
    assert {each["kind"] for each in objects} == kinds | routes
    assert custom_resources.faults(objects, tmp_path) == []


def test_invalid_custom_resources_are_found(tmp_path: Path) -> None:
    objects = deepcopy([each for each in rendered("canary+keda-canary") if custom_resources.is_known(each)])
    one(objects, "Rollout", "completion-server")["spec"]["strategy"]["canary"]["maxSurg"] = 1
    one(objects, "ScaledObject", "completion-server")["spec"]["triggers"][0]["metadata"]["threshold"] = 30
    one(objects, "Certificate", "redis")["spec"].pop("secretName")
    one(objects, "GRPCRoute", "completion")["spec"]["rules"][0]["matches"][0]["method"]["servic"] = "x"
    found = custom_resources.faults(objects, tmp_path)
    named = {each.partition(":")[0] for each in found}
    assert named == {
        "Rollout/completion-server",
        "ScaledObject/completion-server",
        "Certificate/redis",
        "GRPCRoute/completion",
    }, found


def test_the_global_records_are_valid() -> None:
    records = [each for each in rendered("global") if each["kind"] == "DNSEndpoint"]
    assert len(records) == len(rendered("global")) == 3
    assert [faults_of_dns_endpoint(each) for each in records] == [[], [], []]
    wrong = deepcopy(records[0])
    wrong["spec"]["endpoints"][0]["setIdentifer"] = wrong["spec"]["endpoints"][0].pop("setIdentifier")
    assert faults_of_dns_endpoint(wrong) != []


@pytest.mark.parametrize("target", TARGETS)
def test_policies_are_kept(target: str) -> None:
    for policy in POLICIES:
        violations = list(policy(list(rendered(target))))
        is_exception = EXCEPTIONS.get(policy, "none") in target.split("+")
        assert bool(violations) == is_exception, violations


FAULTS: dict[str, tuple[Policy, Change]] = {
    "no liveness": (policies.probes, lambda all_: server_of(all_).pop("livenessProbe")),
    "a service that the server lacks": (
        policies.probes,
        lambda all_: server_of(all_)["readinessProbe"]["grpc"].update(service="completion"),
    ),
    "liveness by readiness": (
        policies.probes,
        lambda all_: server_of(all_)["livenessProbe"]["grpc"].update(service="completion.v1.CompletionService"),
    ),
    "too little time to start": (policies.probes, lambda all_: server_of(all_)["startupProbe"].update(periodSeconds=3)),
    "no limit of memory": (policies.resources, lambda all_: server_of(all_)["resources"]["limits"].pop("memory")),
    "no request of cpu": (
        policies.resources,
        lambda all_: pod_of(all_, "redis", "StatefulSet")["containers"][1]["resources"]["requests"].pop("cpu"),
    ),
    "half a GPU": (policies.resources, lambda all_: server_of(all_)["resources"]["requests"].pop("nvidia.com/gpu")),
    "privileged": (policies.privileges, lambda all_: server_of(all_)["securityContext"].update(privileged=True)),
    "root": (policies.privileges, lambda all_: pod_of(all_)["securityContext"].update(runAsUser=0)),
    "a writable root": (
        policies.privileges,
        lambda all_: server_of(all_)["securityContext"].pop("readOnlyRootFilesystem"),
    ),
    "a capability": (
        policies.privileges,
        lambda all_: server_of(all_)["securityContext"]["capabilities"].update(add=["NET_RAW"]),
    ),
    "no seccomp": (
        policies.privileges,
        lambda all_: pod_of(all_, "completion-edge")["securityContext"].pop("seccompProfile"),
    ),
    "the node's network": (policies.privileges, lambda all_: pod_of(all_).update(hostNetwork=True)),
    "the node's files": (
        policies.privileges,
        lambda all_: pod_of(all_)["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
    ),
    "a token": (policies.tokens, lambda all_: pod_of(all_).pop("automountServiceAccountToken")),
    "a tag": (policies.images, lambda all_: server_of(all_).update(image="redis:7.4")),
    "a short digest": (policies.images, lambda all_: server_of(all_).update(image="redis@sha256:abc")),
    "another port of the server": (policies.ports, lambda all_: server_of(all_)["ports"][0].update(containerPort=1)),
    "another port of a service": (
        policies.ports,
        lambda all_: one(all_, "Service", "completion-edge")["spec"]["ports"][0].update(port=50051),
    ),
    "killed while it drains": (policies.grace, lambda all_: pod_of(all_).update(terminationGracePeriodSeconds=25)),
    "no preStop": (policies.grace, lambda all_: server_of(all_).pop("lifecycle")),
    "an edge killed while it drains": (
        policies.grace,
        lambda all_: pod_of(all_, "completion-edge").update(terminationGracePeriodSeconds=60),
    ),
    "no disruption budget": (
        policies.disruptions,
        lambda all_: all_.remove(one(all_, "PodDisruptionBudget", "redis")),
    ),
    "a budget of two": (
        policies.disruptions,
        lambda all_: one(all_, "PodDisruptionBudget", "redis")["spec"].update(maxUnavailable=2),
    ),
    "not spread": (policies.disruptions, lambda all_: pod_of(all_)["topologySpreadConstraints"].clear()),
    "another file of the server": (
        policies.references,
        lambda all_: one(all_, "ConfigMap", "completion-server")["metadata"].update(name="other"),
    ),
    "no certificate for the gateway": (
        policies.references,
        lambda all_: all_.remove(one(all_, "Certificate", "completion-edge")),
    ),
    "a Secret": (policies.secrets, lambda all_: all_.append({"kind": "Secret", "metadata": {"name": "x"}})),
    "a password in a variable": (
        policies.secrets,
        lambda all_: server_of(all_)["env"].append({"name": "REDIS_PASSWORD", "value": "x"}),
    ),
    "old pods go first": (
        policies.rollouts,
        lambda all_: one(all_, "Deployment", "completion-server")["spec"]["strategy"]["rollingUpdate"].update(
            maxUnavailable=1
        ),
    ),
    "given up too early": (
        policies.rollouts,
        lambda all_: one(all_, "Deployment", "completion-server")["spec"].update(progressDeadlineSeconds=1200),
    ),
    "no GPU to roll out with": (
        policies.quota,
        lambda all_: one(all_, "ResourceQuota", "gpus")["spec"]["hard"].update({"requests.nvidia.com/gpu": "4"}),
    ),
    "one proxy": (
        policies.proxies,
        lambda all_: kubernetes_of(all_)["envoyDeployment"].update(replicas=1),
    ),
    "proxies without a disruption budget": (policies.proxies, lambda all_: kubernetes_of(all_).pop("envoyPDB")),
    "proxies that the gateway does not name": (
        policies.proxies,
        lambda all_: one(all_, "Gateway", "completion")["spec"].pop("infrastructure"),
    ),
    "a gateway that admits anybody": (
        policies.admission,
        lambda all_: one(all_, "ClientTrafficPolicy", "completion")["spec"].pop("tls"),
    ),
    "a gateway that asks DNS for a certificate": (
        policies.admission,
        lambda all_: one(all_, "ClientTrafficPolicy", "completion")["spec"]["targetRefs"][0].pop("sectionName"),
    ),
    "a gateway with the default limits": (
        policies.gateway_limits,
        lambda all_: one(all_, "BackendTrafficPolicy", "completion")["spec"].pop("circuitBreaker"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_policy_catches(fault: str) -> None:
    policy, change = FAULTS[fault]
    assert list(policy(broken("regions/us-east", change))) != []


def test_the_quota_leaves_a_gpu_to_roll_out_with_at_kedas_most() -> None:
    objects = broken(
        "canary+keda-canary",
        lambda all_: one(all_, "ResourceQuota", "gpus")["spec"]["hard"].update({"requests.nvidia.com/gpu": "5"}),
    )
    assert list(policies.quota(objects)) == ["ResourceQuota/gpus: 5 GPUs are fewer than the 6 of a rollout"]


def test_names_come_from_tokens_alone_with_jwt() -> None:
    objects = broken("jwt", lambda all_: one(all_, "ClientTrafficPolicy", "completion")["spec"].pop("headers"))
    assert list(policies.admission(objects)) == ["ClientTrafficPolicy/completion: passes on names that no token proves"]


def test_every_policy_was_seen_to_catch_a_fault() -> None:
    assert {policy for policy, _ in FAULTS.values()} == set(POLICIES)


INTENDED = {
    ("completion/completion-edge", "completion/completion-server", 50051),
    ("completion/completion-server", "completion/redis", 6379),
    ("completion/completion-server", "completion/redis", 26379),
    ("completion/redis", "completion/redis", 6379),
    ("completion/redis", "completion/redis", 26379),
    ("envoy-gateway-system/envoy", "completion/completion-edge", 50050),
    ("envoy-gateway-system/envoy", "completion/completion-edge", 8080),
    ("monitoring/prometheus", "completion/completion-edge", 9902),
    ("monitoring/prometheus", "completion/completion-server", 9464),
}


def beside_dns(objects: list[Object] | tuple[Object, ...]) -> set[tuple[str, str, int]]:
    """Return the connections that policies allow, less those to DNS, which every pod of the namespace has."""
    found = allowed(list(objects))
    to_dns = {each for each in found if each[1:] == ("kube-system/coredns", 53)}
    assert {each[0] for each in to_dns} >= {"completion/completion-server", "completion/redis"}
    return found - to_dns


def test_only_the_intended_connections_are_allowed() -> None:
    assert beside_dns(rendered("regions/us-east")) == INTENDED
    tested = [*rendered("regions/us-east"), *rendered("loadtest")]
    assert beside_dns(tested) == INTENDED | {("completion/loadtest", "completion/completion-edge", 50050)}


@pytest.mark.parametrize("name", ["default-deny", "completion-server", "redis", "completion-edge"])
def test_each_network_policy_matters(name: str) -> None:
    without = broken("regions/us-east", lambda all_: all_.remove(one(all_, "NetworkPolicy", name)))
    assert beside_dns(without) != INTENDED
