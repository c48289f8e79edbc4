"""What kustomize makes of deploy/ is valid for Kubernetes, keeps the policies, and each check catches a fault."""

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from completion_server.client.probe_command import probe
from completion_server.rpc.server import COMPLETION_SERVICE
from tests.deploy.manifests import policies
from tests.deploy.manifests.network import PEERS, allowed
from tests.deploy.manifests.policies import POLICIES, Policy
from tests.deploy.manifests.targets import FOLDERS, REGIONS, TARGETS, loaded, rendered, server_config
from tests.support import custom_resources
from tests.support.kustomize import DEPLOY, Object, name_of, one

CUSTOM_KINDS = {
    *("Rollout", "AnalysisTemplate", "ScaledObject", "Certificate", "Issuer", "PodMonitor", "PrometheusRule"),
    *("Gateway", "GatewayClass", "GRPCRoute", "HTTPRoute", "EnvoyProxy"),
    *("ApplicationSet", "Kustomization", "GitRepository"),
    *("SecurityPolicy", "ClientTrafficPolicy", "BackendTrafficPolicy"),
}
VERSIONS = ("1.35", "1.36", "1.37")
"""The three that Kubernetes maintained when this was written."""
NOT_SERVING = [each for each in FOLDERS if not each.startswith("regions/")]
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
    if owner == "+":
        return [*objects, value]
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
    assert made == {"name": one(rendered("regions/us-east"), "Gateway", "completion")["spec"]["gatewayClassName"]}
    assert f"kubectl apply -f deploy/{GATEWAY_CLASS}" in (DEPLOY / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[Any]:
    """Yield kubernetes-validate, which takes seconds to import and would read all schemas anew for each object."""
    import kubernetes_validate.utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
        yield kubernetes_validate


@pytest.mark.full
def test_every_object_is_strictly_valid_in_three_versions(kubernetes: Any) -> None:
    known = (each for each in distinct_objects() if not custom_resources.is_known(each))
    objects = [each for each in known if each["kind"] != "DNSEndpoint"] + [loaded("monitoring/kube-prometheus.yaml")]
    assert {"Deployment", "StatefulSet", "NetworkPolicy", "Job"} <= {each["kind"] for each in objects}
    for version in VERSIONS:
        for each in objects:
            assert kubernetes.validate(each, version, strict=True) == version, name_of(each)


@pytest.mark.parametrize(
    ("path", "value"),
    [("minReadySecond", 3), ("template spec containers 0 image", 3), ("selector", None)],
    ids=["unknown field", "wrong type", "missing field"],
)
def test_an_invalid_object_is_found(kubernetes: Any, path: str, value: Any) -> None:
    objects = broken("regions/us-east", f"Deployment/completion-server spec {path}", value)
    found = one(objects, "Deployment", "completion-server")
    for version in VERSIONS:
        with pytest.raises(kubernetes.ValidationError):
            kubernetes.validate(found, version, strict=True)


INVALID: dict[str, Any] = {
    "Rollout/completion-server spec strategy canary maxSurg": 1,
    "ScaledObject/completion-server spec triggers 0 metadata threshold": 30,
    "Certificate/completion-edge spec secretName": None,
    "GRPCRoute/completion spec rules 0 matches 0 method servic": "x",
    "ApplicationSet/completion spec strategy rollingSync steps 0 matchExpression": [],
    "Kustomization/completion-us-west spec dependsOn 0 name": None,
    "GitRepository/completion spec url": 1,
}
OF_FOLDERS = {"ApplicationSet": "gitops/argocd", "Kustomization": "gitops/flux", "GitRepository": "gitops/flux"}


@pytest.mark.full
def test_custom_resources_are_valid_by_the_types_of_their_projects_and_invalid_ones_are_found(tmp_path: Path) -> None:
    objects = [each for each in distinct_objects() if custom_resources.is_known(each)] + [loaded(GATEWAY_CLASS)]
    assert {each["kind"] for each in objects} == CUSTOM_KINDS
    wrong = []
    for path, value in INVALID.items():
        kind, _, name = path.split()[0].partition("/")
        wrong.append(one(broken(OF_FOLDERS.get(kind, "regions/us-east"), path, value), kind, name))
        wrong[-1]["metadata"]["name"] = "wrong"
    found = {each.partition(":")[0] for each in custom_resources.faults([*objects, *wrong], tmp_path)}
    assert found == {name_of(each) for each in wrong}


@pytest.mark.parametrize("target", TARGETS)
def test_policies_are_kept(target: str) -> None:
    for policy in POLICIES:
        violations = list(policy(list(rendered(target))))
        is_exception = EXCEPTIONS.get(policy, "none") in target.split("+")
        assert bool(violations) == is_exception, violations


@pytest.mark.parametrize("target", [each for each in TARGETS if each not in NOT_SERVING])
def test_the_servers_file_loads_in_its_own_model(target: str) -> None:
    config = server_config(list(rendered(target)))
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
PROXIES = "EnvoyProxy/completion spec provider kubernetes"
GATEWAY = "ClientTrafficPolicy/completion spec"
SCALED = "ScaledObject/completion-server spec"
FAULTS: tuple[tuple[Policy, str, str, Any], ...] = (
    (policies.server_probes, "regions/us-east", f"{SERVER} livenessProbe grpc service", COMPLETION_SERVICE),
    (policies.gpus, "regions/us-east", f"{SERVER} resources requests nvidia.com/gpu", None),
    (policies.pods, "regions/us-east", f"{SERVER} readinessProbe", None),
    (policies.pods, "regions/us-east", f"{SERVER} resources limits memory", None),
    (policies.pods, "regions/us-east", f"{SERVER} securityContext readOnlyRootFilesystem", None),
    (policies.pods, "regions/us-east", f"{SERVER} ports 0 hostPort", 1),
    (policies.pods, "regions/us-east", f"{SERVER} image", "redis:7.4"),
    (policies.pods, "regions/us-east", f"{POD} volumes +", {"name": "host", "hostPath": {"path": "/"}}),
    (policies.pods, "regions/us-east", f"{POD} automountServiceAccountToken", None),
    (policies.ports, "regions/us-east", f"{SERVER} ports 0 containerPort", 1),
    (policies.grace, "regions/us-east", f"{POD} terminationGracePeriodSeconds", 25),
    (policies.disruptions, "regions/us-east", "PodDisruptionBudget/completion-server", None),
    (policies.references, "regions/us-east", "ConfigMap/completion-server metadata name", "other"),
    (policies.secrets, "regions/us-east", f"{SERVER} env +", {"name": "REDIS_PASSWORD", "value": "x"}),
    (policies.rollouts, "regions/us-east", "Deployment/completion-server spec progressDeadlineSeconds", 1200),
    (policies.quota, "regions/us-east", "ResourceQuota/gpus spec hard requests.nvidia.com/gpu", "8"),
    (policies.scaling, "regions/us-east", "Rollout/completion-server spec workloadRef scaleDown", "progressively"),
    (policies.scaling, "-canary", f"{SCALED} scaleTargetRef kind", "Rollout"),
    (policies.proxies, "regions/us-east", f"{PROXIES} envoyDeployment replicas", 1),
    (policies.admission, "regions/us-east", f"{GATEWAY} tls", None),
    (policies.admission, "jwt", f"{GATEWAY} headers", None),
    (policies.references, "crl", f"{GATEWAY} tls clientValidation crl refs 0 name", "completion-crl"),
    (policies.probe_credentials, "regions/us-east", f"{PROBE} args 2", "--user=probe"),
    (policies.probe_credentials, "jwt", f"{PROBE} args", ["probe", "--tls-ca=/etc/ssl/certs/ca-certificates.crt"]),
    (policies.gateway_limits, "regions/us-east", "BackendTrafficPolicy/completion spec circuitBreaker", None),
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
    *(
        ("completion/completion-probe", f"{each.namespace}/{each.name}", 443)
        for each in PEERS
        if each.namespace != "completion"
    ),
}


def beside_dns(objects: list[Object] | tuple[Object, ...]) -> set[tuple[str, str, int]]:
    """Return the connections that policies allow, less those to DNS, which every pod of the namespace has."""
    found = allowed(list(objects))
    to_dns = {each for each in found if each[1:] == ("kube-system/coredns", 53)}
    assert {each[0] for each in to_dns} >= {"completion/completion-server", "completion/completion-edge"}
    return found - to_dns


def test_only_the_intended_connections_are_allowed() -> None:
    assert beside_dns(rendered("regions/us-east")) == INTENDED
    tested = [*rendered("regions/us-east"), *rendered("loadtest")]
    assert beside_dns(tested) == INTENDED | {("completion/loadtest", "completion/completion-edge", 50050)}
    to_redis = {(f"completion/{each}", "completion/redis") for each in ("completion-server", "redis")}
    reached = {(*each, port) for each in to_redis for port in (6379, 26379)}
    assert beside_dns(rendered("redis")) == INTENDED | reached


@pytest.mark.parametrize("target", ["regions/us-east", "jwt"])
def test_a_probe_asks_at_the_names_of_all_regions(target: str) -> None:
    (container,) = one(rendered(target), "Deployment", "completion-probe")["spec"]["template"]["spec"]["containers"]
    (names,) = (each["value"] for each in container["env"])
    hosts = {
        one(rendered(f"regions/{region}"), "GRPCRoute", "completion")["spec"]["hostnames"][1] for region in REGIONS
    }
    assert {each.removesuffix(":443") for each in names.split(",")} == hosts
    name, *arguments = container["args"]
    # The files of the options must be there.
    with probe.make_context(name, [each for each in arguments if not each.startswith("--tls-")]) as parsed:
        assert parsed.params["metrics_listen"] == f"0.0.0.0:{container['ports'][0]['containerPort']}"


@pytest.mark.parametrize(
    "name",
    ["default-deny", "completion-server", "redis", "completion-server-to-redis", "completion-edge", "completion-probe"],
)
def test_each_network_policy_matters(name: str) -> None:
    without = broken("redis", f"NetworkPolicy/{name}", None)
    assert beside_dns(without) != beside_dns(rendered("redis"))
