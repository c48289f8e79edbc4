"""What every workload of deploy/ must keep. Each policy yields one line for each violation.

They take plain objects, so that a test can break one and see that the policy says so.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from completion_server.api.rpc.server import ADMIN_SERVICE, COMPLETION_SERVICE
from tests.deploy.manifests.targets import server_config
from tests.support.envoy import cluster_of
from tests.support.kustomize import Object, containers, name_of, of_kind, one, pod_specs

Policy = Callable[[list[Object]], Iterator[str]]

ENGINE_STOP_S = 13
"""From the end of the drain: streams and Redis 3 s, the engine 10 s (engine/vllm/engine.py)."""
WARM_UP_S = 120
"""What a server may take after its models are loaded: warm-up and the trial of K."""
GIVEN_SECRETS = {
    "completion-redis", "completion-secret", "completion-clients", "completion-clients-crl", "completion-probe",
    "completion-object-storage",
}  # fmt: skip
"""Made by the operator (deploy/README.md, docs/security.md)."""
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_GATEWAY_DEFAULT = 1024


_RIGHTS = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Those of a plain user's process, which can't write to its image."""


def pods(objects: list[Object]) -> Iterator[str]:
    """Pods have few rights, no token of the cluster, and images by digest.

    What else the restricted standard forbids, as a folder of the node, the namespace has Kubernetes refuse.
    """
    for each in of_kind(objects, "Namespace"):
        if each["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{name_of(each)}: does not enforce the restricted standard"
    images = {container["image"] for _, container, _ in containers(objects)}
    for owner, pod in pod_specs(objects):
        images |= {each["image"]["reference"] for each in pod.get("volumes", ()) if "image" in each}
        # Variables of the pod's services look like the server's own.
        if pod.get("automountServiceAccountToken") is not False or pod.get("enableServiceLinks") is not False:
            yield f"{owner}: gets a token of the cluster, or variables of its services"
    yield from (f"{each} has no digest" for each in images if not re.search("@sha256:[0-9a-f]{64}$", each))
    for name, container, pod in containers(objects):
        # A container's context is its own, then its pod's.
        if not _RIGHTS.items() <= (pod.get("securityContext", {}) | container.get("securityContext", {})).items():
            yield f"{name}: has more rights than it needs"


def limits(objects: list[Object]) -> Iterator[str]:
    """Containers ask for what they need, have a limit of memory, and say when they can serve."""
    for name, container, _ in containers(objects):
        resources = container.get("resources", {})
        if not resources.get("requests", {}).keys() >= {"cpu", "memory"} or "memory" not in resources.get("limits", {}):
            yield f"{name}: has no requests of CPU and memory, or no limit of memory"
        probes = () if name.startswith("Job/") else _PROBES[1:] if name == "StatefulSet/redis/redis" else _PROBES
        yield from (f"{name}: no {each}" for each in probes if each not in container)


def server_probes(objects: list[Object]) -> Iterator[str]:
    """The server's probes ask its gRPC health for services that it has, and leave it the time to start."""
    for name, container, _ in containers(objects):
        if container["name"] != "server":
            continue
        config = server_config(objects)
        port = int(config.server.listen.rpartition(":")[2])
        for each, service in zip(_PROBES, (COMPLETION_SERVICE, COMPLETION_SERVICE, ADMIN_SERVICE), strict=True):
            if container[each].get("grpc") != {"port": port, "service": service}:
                yield f"{name}: {each} does not ask {service} on port {port}"
        if _startup_s(container) < config.engine.start_timeout_s + WARM_UP_S:
            yield f"{name}: startupProbe allows less than engine.start_timeout_s and a warm-up"


def _startup_s(container: Object) -> float:
    """Return how long a container may take to start, by Kubernetes' defaults unless its probe says otherwise."""
    probe = container["startupProbe"]
    return float(probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3))


def ports(objects: list[Object]) -> Iterator[str]:
    """Services lead to ports that containers have, under the same number, and the server listens on them."""
    declared: dict[str, dict[str, int]] = {}
    for name, container, _ in containers(objects):
        owner = declared.setdefault(name.split("/")[1], {})
        owner |= {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    for service in of_kind(objects, "Service"):
        found = declared.get(service["spec"]["selector"]["app.kubernetes.io/name"], {})
        for port in service["spec"]["ports"]:
            if found.get(port["targetPort"]) != port["port"]:
                yield f"{name_of(service)}: no container has the port {port['targetPort']} {port['port']}"
    if "completion-server" in declared:
        settings = server_config(objects).server
        for key, address in {"grpc": settings.listen, "metrics": settings.metrics_listen}.items():
            if f"0.0.0.0:{declared['completion-server'].get(key)}" != address:
                yield f"completion-server: port {key} is not where the server listens, {address}"


def grace(objects: list[Object]) -> Iterator[str]:
    """A pod is killed only after its preStop hook, its drain and the end of its engine."""
    for name, container, pod in containers(objects):
        hook = container.get("lifecycle", {}).get("preStop", {})
        if container["name"] in {"server", "envoy"} and not hook:
            yield f"{name}: no preStop hook"
        slept = re.search(r"^sleep (\d+)$", hook["exec"]["command"][-1], re.MULTILINE) if "exec" in hook else None
        needed = float(slept[1]) if slept else float(hook.get("sleep", {}).get("seconds", 0))
        if container["name"] == "server":
            needed += server_config(objects).server.grace_s + ENGINE_STOP_S
        if pod.get("terminationGracePeriodSeconds", 30) <= needed:
            yield f"{name}: terminationGracePeriodSeconds must be more than {needed:g}"


def disruptions(objects: list[Object]) -> Iterator[str]:
    """Replicated pods are spread over nodes, and a drain of nodes takes one at a time."""
    budgets = [each["spec"] for each in of_kind(objects, "PodDisruptionBudget")]
    for each in of_kind(objects, "Deployment", "StatefulSet"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        found = [budget for budget in budgets if budget["selector"]["matchLabels"].items() <= labels.items()]
        if [budget.get("maxUnavailable") for budget in found] != [1]:
            yield f"{name_of(each)}: no PodDisruptionBudget with maxUnavailable 1"
        spread = each["spec"]["template"]["spec"].get("topologySpreadConstraints", ())
        over = {one["topologyKey"] for one in spread if one["labelSelector"]["matchLabels"].items() <= labels.items()}
        if "kubernetes.io/hostname" not in over:
            yield f"{name_of(each)}: not spread over nodes"


_SOURCES = {
    "configMap": ("ConfigMap", "name"),
    "secret": ("Secret", "secretName"),
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
}


def references(objects: list[Object]) -> Iterator[str]:
    """What a pod, a gateway or its policy names is there, or is made from what the README has an operator create."""
    made = {each["spec"]["secretName"] for each in of_kind(objects, "Certificate")}
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    names |= {("Secret", name) for name in made | GIVEN_SECRETS}
    named = [
        (owner, kind, volume[key][field])
        for owner, pod in pod_specs(objects)
        for volume in pod.get("volumes", ())
        for key, (kind, field) in _SOURCES.items()
        if key in volume
    ]
    for owner, pod in pod_specs(objects):
        keys = {"serviceAccountName": "ServiceAccount", "priorityClassName": "PriorityClass"}
        named += [(owner, kind, pod[key]) for key, kind in keys.items() if key in pod]
    for each in of_kind(objects, "Gateway", "ClientTrafficPolicy"):
        refs = _values(each["spec"], {"certificateRefs", "caCertificateRefs", "refs"})
        named += [(name_of(each), "Secret", ref["name"]) for ref in refs]
    yield from (f"{owner}: there is no {kind}/{name}" for owner, kind, name in named if (kind, name) not in names)


def _values(found: Any, keys: set[str]) -> Iterator[Any]:
    """Yield the items of the lists below any of these keys."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from value if key in keys else _values(value, keys)
    elif isinstance(found, list):
        for each in found:
            yield from _values(each, keys)


def admission(objects: list[Object]) -> Iterator[str]:
    """The gateway asks for client certificates, or takes the names of users from tokens alone."""
    has_tokens = any("jwt" in each["spec"] for each in of_kind(objects, "SecurityPolicy"))
    for policy in of_kind(objects, "ClientTrafficPolicy"):
        spec = policy["spec"]
        validation = spec.get("tls", {}).get("clientValidation", {})
        removed = set(spec.get("headers", {}).get("earlyRequestHeaders", {}).get("remove", ()))
        if has_tokens and not removed >= {"x-user-id", "x-tenant-id"}:
            yield f"{name_of(policy)}: passes on names that no token proves"
        if not has_tokens and (not validation.get("caCertificateRefs") or validation.get("optional")):
            yield f"{name_of(policy)}: admits callers without a certificate"
        if validation and [each.get("sectionName") for each in spec["targetRefs"]] != ["https"]:
            yield f"{name_of(policy)}: health checks of DNS have no certificate"


def probe_credentials(objects: list[Object]) -> Iterator[str]:
    """A probe has what the gateway asks for: a certificate, or, beside tokens, a token."""
    has_tokens = any("jwt" in each["spec"] for each in of_kind(objects, "SecurityPolicy"))
    needed = {"--token-file"} if has_tokens else {"--tls-cert", "--tls-key"}
    for name, container, pod in containers(objects):
        if container["name"] != "probe":
            continue
        options = dict(each.partition("=")[::2] for each in container["args"])
        yield from (f"{name}: no {each}" for each in sorted(needed - options.keys()))
        items = {each["name"]: each.get("secret", {}).get("items", ()) for each in pod.get("volumes", ())}
        mounts = container.get("volumeMounts", ())
        files = {f"{each['mountPath']}/{item['path']}" for each in mounts for item in items[each["name"]]}
        for option in {"--token-file", "--tls-cert", "--tls-key"} & options.keys():
            if options[option] not in files:
                yield f"{name}: {option} names {options[option]}, which no Secret has"


def proxies(objects: list[Object]) -> Iterator[str]:
    """The gateway has more than one proxy, spread over nodes, and a drain of nodes takes one at a time."""
    for gateway in of_kind(objects, "Gateway"):
        named = gateway["spec"]["infrastructure"]["parametersRef"]["name"]
        kubernetes = one(objects, "EnvoyProxy", named)["spec"]["provider"]["kubernetes"]
        deployment = kubernetes["envoyDeployment"]
        if deployment.get("replicas", 1) < 2:
            yield "EnvoyProxy: one proxy carries all sessions"
        if kubernetes.get("envoyPDB", {}).get("maxUnavailable") != 1:
            yield "EnvoyProxy: no PodDisruptionBudget with maxUnavailable 1"
        if not deployment["pod"].get("topologySpreadConstraints"):
            yield "EnvoyProxy: not spread over nodes"


def _servers(objects: list[Object]) -> dict[str, Object]:
    """Return the objects that make the servers' pods, and KEDA's, by kind."""
    kinds = of_kind(objects, "Deployment", "Rollout", "ScaledObject")
    return {each["kind"]: each for each in kinds if each["metadata"]["name"] == "completion-server"}


def quota(objects: list[Object]) -> Iterator[str]:
    """A rollout has its GPU beside the servers, also while KEDA has as many of those as it may."""
    found = {kind: each["spec"] for kind, each in _servers(objects).items()}
    if not found:
        return
    workload = found.get("Rollout") or found["Deployment"]
    strategy = workload["strategy"]
    surge = (strategy.get("rollingUpdate") or strategy["canary"])["maxSurge"]
    ((_, container, _),) = (each for each in containers(objects) if each[1]["name"] == "server")
    num_gpus = int(container["resources"]["requests"].get("nvidia.com/gpu", 0))
    needed = num_gpus * (found.get("ScaledObject", {}).get("maxReplicaCount", workload.get("replicas", 1)) + surge)
    for each in of_kind(objects, "ResourceQuota"):
        if int(each["spec"]["hard"]["requests.nvidia.com/gpu"]) < needed:
            yield f"{name_of(each)}: fewer GPUs than the {needed} of a rollout"


def scaling(objects: list[Object]) -> Iterator[str]:
    """KEDA scales the object that owns the servers' pods, a Rollout needs KEDA, and no apply sets its number back."""
    found = _servers(objects)
    rollout, scaled = found.get("Rollout"), found.get("ScaledObject")
    if rollout is not None:
        spec, deployment = rollout["spec"], found["Deployment"]
        # "progressively" starts the Deployment's pods again while the first revision is not healthy.
        if spec["workloadRef"] != _reference(deployment) | {"scaleDown": "onsuccess"}:
            yield f"{name_of(rollout)}: the Deployment keeps or starts pods beside the Rollout's"
        if spec["selector"] != deployment["spec"]["selector"]:
            yield f"{name_of(rollout)}: selects other pods than the Deployment's, which are spread and protected"
        if scaled is None:
            yield f"{name_of(rollout)}: nobody sets the number of servers"
    if scaled is not None:
        if scaled["spec"]["scaleTargetRef"] != _reference(rollout or found["Deployment"]):
            yield f"{name_of(scaled)}: scales what owns no pods"
        if any("replicas" in each["spec"] for each in found.values()):
            yield f"{name_of(scaled)}: an apply sets the number of servers"


def _reference(found: Object) -> Object:
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "name": found["metadata"]["name"]}


def secrets(objects: list[Object]) -> Iterator[str]:
    """No secret is in the repository, neither as an object nor in a variable."""
    yield from (f"{name_of(each)}: a Secret in the manifests" for each in of_kind(objects, "Secret"))
    for name, container, _ in containers(objects):
        for variable in container.get("env", ()):
            key, value = variable["name"], variable.get("value", "")
            is_secret = re.search(r"PASSWORD|SECRET|TOKEN(?!S)", key) and not key.endswith("_FILE")
            if is_secret and value and not value.startswith("/"):
                yield f"{name}: {key} holds a secret"


def rollouts(objects: list[Object]) -> Iterator[str]:
    """A new server warms up before an old one goes, and has the time for it."""
    found = _servers(objects)
    for kind in {"Deployment", "Rollout"} & found.keys():
        spec = found[kind]["spec"]
        strategy = spec["strategy"].get("rollingUpdate") or spec["strategy"].get("canary") or {}
        if (strategy.get("maxUnavailable"), strategy.get("maxSurge")) != (0, 1):
            yield f"{kind}: an old pod may go before a new one is warm"
        start_s = _startup_s(found["Deployment"]["spec"]["template"]["spec"]["containers"][0])
        if spec.get("progressDeadlineSeconds", 600) <= start_s + spec.get("minReadySeconds", 0):
            yield f"{kind}: given up before a start may have ended"


def gateway_limits(objects: list[Object]) -> Iterator[str]:
    """The gateway admits at least what each Envoy behind it admits; Envoy Gateway's default is 1,024 of each."""
    for policy in of_kind(objects, "BackendTrafficPolicy"):
        envoy = yaml.safe_load(one(objects, "ConfigMap", "completion-edge")["data"]["envoy.yaml"])
        (monitor,) = envoy["overload_manager"]["resource_monitors"]
        (threshold,) = cluster_of(envoy)["circuit_breakers"]["thresholds"]
        needed = {
            "maxConnections": monitor["typed_config"]["max_active_downstream_connections"],
            "maxPendingRequests": threshold["max_pending_requests"],
            "maxParallelRequests": threshold["max_requests"],
        }
        admitted = policy["spec"].get("circuitBreaker", {})
        low = [key for key, least in needed.items() if admitted.get(key, _GATEWAY_DEFAULT) < least]
        yield from (f"{name_of(policy)}: {key} is less than the Envoys admit" for key in low)


POLICIES: tuple[Policy, ...] = (
    *(pods, limits, server_probes, ports, grace, disruptions, references, secrets, rollouts),
    *(gateway_limits, admission, probe_credentials, proxies, quota, scaling),
)
