"""What kustomize makes of deploy/ is valid for Kubernetes, keeps the policies, and each check catches a fault."""

import json
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from completion_server.api.rpc.server import COMPLETION_SERVICE
from completion_server.client.probe_command import probe
from tests.deploy.manifests import policies
from tests.deploy.manifests.network import PEERS, allowed
from tests.deploy.manifests.policies import POLICIES, Policy
from tests.deploy.manifests.targets import EAST, REGIONS, TARGETS, container_of, loaded, rendered, server_config
from tests.support import custom_resources
from tests.support.kustomize import DEPLOY, Object, name_of, one

VERSIONS = ("1.35", "1.36", "1.37")
"""The three that Kubernetes maintained when this was written."""
GATEWAY_CLASS = "components/edge/gateway-class.yaml"
EXCEPTIONS = {policies.rollouts: "no-spare-gpu"}
"""Components that exist to break a policy."""


def distinct_objects() -> Iterable[Object]:
    """Return the objects of all targets, each once."""
    return {json.dumps(each, sort_keys=True): each for target in TARGETS for each in rendered(target)}.values()


def broken(target: str, path: str, value: Any) -> list[Object]:
    """Return a copy of a target's objects with another value at "Kind/name key key ...", or without it for None.

    The key "+" appends to a list.
    """
    objects = deepcopy(list(rendered(target)))
    owner, *keys = path.split()
    place: Any = one(objects, *owner.split("/"))
    if not keys:
        objects.remove(place)
        return objects
    *way, last = [int(key) if key.isdecimal() else key for key in keys]
    for key in way:
        place = place[key]
    if last == "+":
        place.append(value)
    elif value is None:
        del place[last]
    else:
        place[last] = value
    return objects


def test_the_gateway_is_of_the_class_that_the_readme_makes() -> None:
    made = loaded(GATEWAY_CLASS)["metadata"]
    assert made == {"name": one(rendered(EAST), "Gateway", "completion")["spec"]["gatewayClassName"]}
    assert f"kubectl apply -f deploy/{GATEWAY_CLASS}" in (DEPLOY / "README.md").read_text("utf-8")


@pytest.mark.full
def test_every_object_is_strictly_valid_in_three_versions_and_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import kubernetes_validate.utils as kubernetes  # takes seconds

    monkeypatch.setattr(kubernetes, "schema_contents", cache(kubernetes.schema_contents))  # else read for each object
    known = (each for each in distinct_objects() if not custom_resources.is_known(each))
    objects = [each for each in known if each["kind"] != "DNSEndpoint"] + [loaded("monitoring/kube-prometheus.yaml")]
    assert {"Deployment", "StatefulSet", "NetworkPolicy", "Job"} <= {each["kind"] for each in objects}
    faults = (("minReadySecond", 3), ("template spec containers 0 image", 3), ("selector", None))
    for version in VERSIONS:
        for each in objects:
            assert kubernetes.validate(each, version, strict=True) == version, name_of(each)
        for path, value in faults:
            wrong = broken(EAST, f"Deployment/completion-server spec {path}", value)
            with pytest.raises(kubernetes.ValidationError):
                kubernetes.validate(one(wrong, "Deployment", "completion-server"), version, strict=True)


INVALID: tuple[tuple[str, str, Any], ...] = (
    (EAST, "Rollout/completion-server spec strategy canary maxSurg", 1),
    (EAST, "ScaledObject/completion-server spec triggers 0 metadata threshold", 30),
    (EAST, "Certificate/completion-edge spec secretName", None),
    (EAST, "GRPCRoute/completion spec rules 0 matches 0 method servic", "x"),
    ("gitops/argocd", "ApplicationSet/completion spec strategy rollingSync steps 0 matchExpression", []),
    ("gitops/flux", "Kustomization/completion-us-west spec dependsOn 0 name", None),
    ("gitops/flux", "GitRepository/completion spec url", 1),
)


@pytest.mark.full
def test_custom_resources_are_valid_by_the_types_of_their_projects_and_invalid_ones_are_found(tmp_path: Path) -> None:
    objects = [each for each in distinct_objects() if custom_resources.is_known(each)] + [loaded(GATEWAY_CLASS)]
    wrong = [one(broken(*fault), *fault[1].split()[0].split("/")) for fault in INVALID]
    for each in wrong:
        each["metadata"]["name"] = "wrong"
    found = {each.partition(":")[0] for each in custom_resources.faults([*objects, *wrong], tmp_path)}
    assert found == {name_of(each) for each in wrong}


@pytest.mark.parametrize("target", TARGETS)
def test_policies_are_kept_and_the_servers_file_loads(target: str) -> None:
    objects = list(rendered(target))
    for policy in POLICIES:
        violations = list(policy(objects))
        is_exception = EXCEPTIONS.get(policy, "none") in target.split("+")
        assert bool(violations) == is_exception, violations
    if any(name_of(each) == "Deployment/completion-server" for each in objects):
        config = server_config(objects)
        assert config.redis.secret_file
        assert config.admission.trust_user_names
        assert config.admission.require_user
        assert bool(config.redis.addresses) == config.redis.tls.enabled == ("redis" in target)


def test_servers_know_each_sentinel_by_a_name_of_its_certificate() -> None:
    redis = server_config(list(rendered("redis"))).redis
    assert redis.topology == "sentinel"
    names = {each.partition(":")[0] for each in redis.addresses}
    assert names == set(one(rendered("redis"), "Certificate", "redis")["spec"]["dnsNames"])


POD = "Deployment/completion-server spec template spec"
SERVER = f"{POD} containers 0"
PROBE = "Deployment/completion-probe spec template spec containers 0"
GATEWAY = "ClientTrafficPolicy/completion spec"
FAULTS: tuple[tuple[Policy, str, str, Any], ...] = (
    (policies.server_probes, EAST, f"{SERVER} livenessProbe grpc service", COMPLETION_SERVICE),
    (policies.limits, EAST, f"{SERVER} readinessProbe", None),
    (policies.limits, EAST, f"{SERVER} resources limits memory", None),
    (policies.pods, EAST, f"{SERVER} securityContext readOnlyRootFilesystem", None),
    (policies.pods, EAST, f"{SERVER} image", "redis:7.4"),
    (policies.pods, EAST, f"{POD} automountServiceAccountToken", None),
    (policies.ports, EAST, f"{SERVER} ports 0 containerPort", 1),
    (policies.grace, EAST, f"{POD} terminationGracePeriodSeconds", 25),
    (policies.disruptions, EAST, "PodDisruptionBudget/completion-server", None),
    (policies.references, EAST, "ConfigMap/completion-server metadata name", "other"),
    (policies.secrets, EAST, f"{SERVER} env +", {"name": "REDIS_PASSWORD", "value": "x"}),
    (policies.rollouts, EAST, "Deployment/completion-server spec progressDeadlineSeconds", 1200),
    (policies.quota, EAST, "ResourceQuota/gpus spec hard requests.nvidia.com/gpu", "8"),
    (policies.scaling, EAST, "Rollout/completion-server spec workloadRef scaleDown", "progressively"),
    (policies.proxies, EAST, "EnvoyProxy/completion spec provider kubernetes envoyDeployment replicas", 1),
    (policies.admission, EAST, f"{GATEWAY} tls", None),
    (policies.admission, "jwt", f"{GATEWAY} headers", None),
    (policies.probe_credentials, EAST, f"{PROBE} args 2", "--user=probe"),
    (policies.gateway_limits, EAST, "BackendTrafficPolicy/completion spec circuitBreaker", None),
)


@pytest.mark.parametrize(("policy", "target", "path", "value"), FAULTS)
def test_a_policy_catches(policy: Policy, target: str, path: str, value: Any) -> None:
    assert list(policy(broken(target, path, value))) != []


INTENDED = {
    ("completion/completion-edge", "completion/completion-server", 50051),
    ("envoy-gateway-system/envoy", "completion/completion-edge", 50050),
    ("envoy-gateway-system/envoy", "completion/completion-edge", 8080),
    ("monitoring/prometheus", "completion/completion-edge", 9902),
    ("monitoring/prometheus", "completion/completion-server", 9464),
    ("monitoring/prometheus", "completion/completion-probe", 9465),
    # To the gateways of all regions, whose addresses no policy knows.
    *(("completion/completion-probe", each, 443) for each in map(str, PEERS) if not each.startswith("completion/")),
}


def beside_dns(objects: Iterable[Object]) -> set[tuple[str, str, int]]:
    """Return the connections that policies allow, less those to DNS, which every pod of the namespace has."""
    found = allowed(list(objects))
    to_dns = {each for each in found if each[1:] == ("kube-system/coredns", 53)}
    assert {each[0] for each in to_dns} >= {"completion/completion-server", "completion/completion-edge"}
    return found - to_dns


def test_only_the_intended_connections_are_allowed() -> None:
    assert beside_dns(rendered(EAST)) == INTENDED
    tested = beside_dns([*rendered(EAST), *rendered("loadtest")])
    assert tested == INTENDED | {("completion/loadtest", "completion/completion-edge", 50050)}
    clients = ("completion/completion-server", "completion/redis")
    to_redis = {(each, "completion/redis", port) for each in clients for port in (6379, 26379)}
    assert beside_dns(rendered("redis")) == INTENDED | to_redis


@pytest.mark.parametrize("target", [EAST, "jwt"])
def test_a_probe_asks_at_the_names_of_all_regions(target: str) -> None:
    container = container_of("completion-probe", target)
    (names,) = (each["value"] for each in container["env"])
    routes = [one(rendered(f"regions/{region}"), "GRPCRoute", "completion")["spec"] for region in REGIONS]
    assert {each.removesuffix(":443") for each in names.split(",")} == {route["hostnames"][1] for route in routes}
    name, *arguments = container["args"]
    # The files of the options must be there.
    with probe.make_context(name, [each for each in arguments if not each.startswith("--tls-")]) as parsed:
        assert parsed.params["metrics_listen"] == f"0.0.0.0:{container['ports'][0]['containerPort']}"
