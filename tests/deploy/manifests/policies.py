"""What every workload of deploy/ must keep. Each policy yields one line for each violation.

They take plain objects, so that a test can break one and see that the policy says so.
"""

import re
from collections.abc import Callable, Iterator

import yaml

from completion_server.rpc.server import ADMIN_SERVICE, COMPLETION_SERVICE
from tests.deploy.manifests.targets import server_config
from tests.support.envoy import cluster_of
from tests.support.kustomize import Object, containers, name_of, of_kind, one, pod_specs

Policy = Callable[[list[Object]], Iterator[str]]

ENGINE_STOP_S = 13
"""From the end of the drain: streams and Redis 3 s, the engine 10 s (engine/vllm/engine.py)."""
WARM_UP_S = 120
"""What a server may take after its models are loaded: warm-up and the trial of K."""
_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}")
_VOLUMES = {"configMap", "downwardAPI", "emptyDir", "image", "persistentVolumeClaim", "projected", "secret"}
GIVEN_SECRETS = {
    "completion-redis", "completion-secret", "completion-clients", "completion-clients-crl", "completion-probe",
    "completion-object-storage",
}  # fmt: skip
"""Made by the operator (deploy/README.md, docs/security.md)."""


def probes(objects: list[Object]) -> Iterator[str]:
    """Every container that serves has all three; the server's ask its gRPC health for services that it has."""
    for name, container, _ in containers(objects):
        needed = () if name.startswith("Job/") else _PROBES
        for each in needed:
            listens_at_once = (name, each) == ("StatefulSet/redis/redis", "startupProbe")
            if each not in container and not listens_at_once:
                yield f"{name}: no {each}"
        if container["name"] != "server":
            continue
        config = server_config(objects)
        port = int(config.server.listen.rpartition(":")[2])
        for each, service in zip(_PROBES, (COMPLETION_SERVICE, COMPLETION_SERVICE, ADMIN_SERVICE), strict=True):
            if container.get(each, {}).get("grpc") != {"port": port, "service": service}:
                yield f"{name}: {each} does not ask {service} on port {port}"
        allowed_s = _startup_s(container)
        if allowed_s < config.engine.start_timeout_s + WARM_UP_S:
            yield f"{name}: startupProbe allows {allowed_s} s, less than engine.start_timeout_s and a warm-up"


_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def _startup_s(container: Object) -> float:
    """Return how long a container may take to start, by Kubernetes' defaults unless its probe says otherwise."""
    probe = container.get("startupProbe", {})
    return float(probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3))


def resources(objects: list[Object]) -> Iterator[str]:
    """Every container asks for CPU and memory, and has a limit of memory; a GPU is asked for whole."""
    for name, container, _ in containers(objects):
        found = container.get("resources", {})
        requests, limits = found.get("requests", {}), found.get("limits", {})
        yield from (f"{name}: no request of {each}" for each in ("cpu", "memory") if each not in requests)
        if "memory" not in limits:
            yield f"{name}: no limit of memory"
        if requests.get("nvidia.com/gpu") != limits.get("nvidia.com/gpu"):
            yield f"{name}: GPUs asked for and allowed differ"


def nodes(objects: list[Object]) -> Iterator[str]:
    """Who asks for no GPU is not tied to nodes with GPUs."""
    for owner, pod in pod_specs(objects):
        has_gpu = any("nvidia.com/gpu" in each["resources"].get("requests", {}) for each in pod["containers"])
        named = sorted(each for each in pod.get("nodeSelector", ()) if each.startswith("nvidia.com/"))
        if named and not has_gpu:
            yield f"{owner}: asks for no GPU, and waits for a node with {', '.join(named)}"


def privileges(objects: list[Object]) -> Iterator[str]:
    """No container has more rights than a process of a plain user, and none can write to its image."""
    for name, container, pod in containers(objects):
        context = pod.get("securityContext", {}) | container.get("securityContext", {})
        for key, value in _CONTEXT.items():
            if context.get(key) != value:
                yield f"{name}: {key} is {context.get(key)}, must be {value}"
        if context.get("privileged") or context.get("runAsUser", 1) == 0:
            yield f"{name}: privileged, or root"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield f"{name}: a port of the node"
    yield from _shared_with_node(objects)


def _shared_with_node(objects: list[Object]) -> Iterator[str]:
    for owner, pod in pod_specs(objects):
        yield from (f"{owner}: {each}" for each in ("hostNetwork", "hostPID", "hostIPC") if pod.get(each))
        for volume in pod.get("volumes", ()):
            if not set(volume) - {"name"} <= _VOLUMES:
                yield f"{owner}: volume {volume['name']} of a kind that is not allowed"


_CONTEXT: Object = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def tokens(objects: list[Object]) -> Iterator[str]:
    """No pod has a token of the cluster, nor variables of its services, which look like the server's own."""
    for owner, pod in pod_specs(objects):
        yield from (
            f"{owner}: {each} is not false"
            for each in ("automountServiceAccountToken", "enableServiceLinks")
            if pod.get(each) is not False
        )


def images(objects: list[Object]) -> Iterator[str]:
    """Every image, also of a volume, is named by its digest."""
    named = [(name, container["image"]) for name, container, _ in containers(objects)]
    for owner, pod in pod_specs(objects):
        named += [(owner, each["image"]["reference"]) for each in pod.get("volumes", ()) if "image" in each]
    yield from (f"{name}: {image} has no digest" for name, image in named if not _DIGEST.fullmatch(image))


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
        listening = {"grpc": settings.listen, "metrics": settings.metrics_listen}
        for key, address in listening.items():
            if f"0.0.0.0:{declared['completion-server'].get(key)}" != address:
                yield f"completion-server: port {key} is not where the server listens, {address}"


def grace(objects: list[Object]) -> Iterator[str]:
    """A pod is killed only after its preStop hook, its drain and the end of its engine."""
    for name, container, pod in containers(objects):
        hook = container.get("lifecycle", {}).get("preStop")
        if container["name"] in {"server", "envoy"} and hook is None:
            yield f"{name}: no preStop hook"
            continue
        needed = _hook_s(hook)
        if container["name"] == "server":
            needed += server_config(objects).server.grace_s + ENGINE_STOP_S
        if pod.get("terminationGracePeriodSeconds", 30) <= needed:
            yield f"{name}: terminationGracePeriodSeconds must be more than {needed:g}"


def _hook_s(hook: Object | None) -> float:
    if hook is None:
        return 0
    if "sleep" in hook:
        return float(hook["sleep"]["seconds"])
    slept = re.search(r"^sleep (\d+)$", hook["exec"]["command"][-1], re.MULTILINE)
    return float(slept[1]) if slept else 0


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
        if not each["spec"]["selector"]["matchLabels"].items() <= labels.items():
            yield f"{name_of(each)}: does not select its own pods"


def references(objects: list[Object]) -> Iterator[str]:
    """What a pod mounts or names is there, or is made from what the README has an operator create."""
    made = {each["spec"]["secretName"] for each in of_kind(objects, "Certificate")}
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    names |= {("Secret", name) for name in made | GIVEN_SECRETS}
    for owner, pod in pod_specs(objects):
        for kind, name in _named(pod):
            if (kind, name) not in names:
                yield f"{owner}: there is no {kind}/{name}"
    for each in of_kind(objects, "Gateway"):
        for listener in each["spec"]["listeners"]:
            found = {found["name"] for found in listener.get("tls", {}).get("certificateRefs", ())}
            yield from (f"{name_of(each)}: nobody makes the Secret {name}" for name in found - made)


def _named(pod: Object) -> Iterator[tuple[str, str]]:
    for volume in pod.get("volumes", ()):
        for key, kind, field in _SOURCES:
            if key in volume:
                yield kind, volume[key][field]
    for kind, key in (("ServiceAccount", "serviceAccountName"), ("PriorityClass", "priorityClassName")):
        if key in pod:
            yield kind, pod[key]


_SOURCES = (
    ("configMap", "ConfigMap", "name"),
    ("secret", "Secret", "secretName"),
    ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
)


def admission(objects: list[Object]) -> Iterator[str]:
    """The gateway asks for client certificates, or takes the names of users from tokens alone."""
    for policy in of_kind(objects, "ClientTrafficPolicy"):
        spec = policy["spec"]
        validation = spec.get("tls", {}).get("clientValidation", {})
        has_tokens = any("jwt" in each["spec"] for each in of_kind(objects, "SecurityPolicy"))
        removed = set(spec.get("headers", {}).get("earlyRequestHeaders", {}).get("remove", ()))
        if has_tokens and not removed >= {"x-user-id", "x-tenant-id"}:
            yield f"{name_of(policy)}: passes on names that no token proves"
        if not has_tokens and (not validation.get("caCertificateRefs") or validation.get("optional")):
            yield f"{name_of(policy)}: admits callers without a certificate"
        named = [*validation.get("caCertificateRefs", ()), *validation.get("crl", {}).get("refs", ())]
        found = {each["name"] for each in named}
        yield from (f"{name_of(policy)}: nobody makes the Secret {name}" for name in found - GIVEN_SECRETS)
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
        mounted = _files_of_secrets(container, pod)
        for option in _CREDENTIALS & options.keys():
            if options[option] not in mounted:
                yield f"{name}: {option} names {options[option]}, which no Secret has"


_CREDENTIALS = {"--token-file", "--tls-cert", "--tls-key"}


def _files_of_secrets(container: Object, pod: Object) -> set[str]:
    """Return the paths of the files that a container has from Secrets."""
    items = {each["name"]: each.get("secret", {}).get("items", ()) for each in pod.get("volumes", ())}
    return {
        f"{mount['mountPath']}/{item['path']}"
        for mount in container.get("volumeMounts", ())
        for item in items[mount["name"]]
    }


def proxies(objects: list[Object]) -> Iterator[str]:
    """The gateway has more than one proxy, spread over nodes, and a drain of nodes takes one at a time."""
    for gateway in of_kind(objects, "Gateway"):
        named = gateway["spec"].get("infrastructure", {}).get("parametersRef", {}).get("name")
        found = [each for each in of_kind(objects, "EnvoyProxy") if each["metadata"]["name"] == named]
        if not found:
            yield f"{name_of(gateway)}: names no EnvoyProxy"
            continue
        kubernetes = found[0]["spec"]["provider"]["kubernetes"]
        deployment = kubernetes.get("envoyDeployment", {})
        if deployment.get("replicas", 1) < 2:
            yield f"{name_of(found[0])}: one proxy carries all sessions"
        if kubernetes.get("envoyPDB", {}).get("maxUnavailable") != 1:
            yield f"{name_of(found[0])}: no PodDisruptionBudget with maxUnavailable 1"
        if not deployment.get("pod", {}).get("topologySpreadConstraints"):
            yield f"{name_of(found[0])}: not spread over nodes"


def quota(objects: list[Object]) -> Iterator[str]:
    """A rollout has its GPU beside the servers, also while KEDA has as many of those as it may."""
    workloads = {
        each["kind"]: each.get("spec", {}) for each in objects if each["metadata"]["name"] == "completion-server"
    }
    workload = workloads.get("Rollout") or workloads.get("Deployment")
    if workload is None:
        return
    strategy = workload["strategy"]
    surge = (strategy.get("rollingUpdate") or strategy["canary"])["maxSurge"]
    scaled = workloads.get("ScaledObject", {})
    ((_, container, _),) = (each for each in containers(objects) if each[1]["name"] == "server")
    gpus = int(container["resources"]["requests"].get("nvidia.com/gpu", 0))
    needed = gpus * (scaled.get("maxReplicaCount", workload.get("replicas", 1)) + surge)
    for each in of_kind(objects, "ResourceQuota"):
        allowed = int(each["spec"]["hard"]["requests.nvidia.com/gpu"])
        if allowed < needed:
            yield f"{name_of(each)}: {allowed} GPUs are fewer than the {needed} of a rollout"


def scaling(objects: list[Object]) -> Iterator[str]:
    """KEDA scales the object that owns the servers' pods, a Rollout needs KEDA, and no apply sets its number back."""
    servers = {
        each["kind"]: each
        for each in of_kind(objects, "Deployment", "Rollout")
        if each["metadata"]["name"] == "completion-server"
    }
    if not servers:
        return
    scaled, rollout = of_kind(objects, "ScaledObject"), servers.get("Rollout")
    if rollout is not None:
        yield from _rollout_faults(rollout, servers["Deployment"])
        if not scaled:
            yield f"{name_of(rollout)}: nobody sets the number of servers"
    for each in scaled:
        if each["spec"]["scaleTargetRef"] != _reference(rollout or servers["Deployment"]):
            yield f"{name_of(each)}: scales what owns no pods"
        yield from (
            f"{name_of(workload)}: an apply sets the number of servers"
            for workload in servers.values()
            if "replicas" in workload["spec"]
        )


def _rollout_faults(rollout: Object, deployment: Object) -> Iterator[str]:
    spec = rollout["spec"]
    if spec["workloadRef"] != _reference(deployment) | {"scaleDown": "onsuccess"}:
        # "progressively" starts the Deployment's pods again while the first revision is not healthy.
        yield f"{name_of(rollout)}: the Deployment keeps or starts pods beside the Rollout's"
    if spec["selector"] != deployment["spec"]["selector"]:
        yield f"{name_of(rollout)}: selects other pods than the Deployment's, which are spread and protected"


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
    for each in of_kind(objects, "Deployment", "Rollout"):
        if each["metadata"]["name"] != "completion-server":
            continue
        spec = each["spec"]
        strategy = spec["strategy"].get("rollingUpdate") or spec["strategy"].get("canary") or {}
        if (strategy.get("maxUnavailable"), strategy.get("maxSurge")) != (0, 1):
            yield f"{name_of(each)}: an old pod may go before a new one is warm"
        pod = one(objects, "Deployment", "completion-server")["spec"]["template"]["spec"]
        start_s = _startup_s(pod["containers"][0])
        if spec.get("progressDeadlineSeconds", 600) <= start_s + spec.get("minReadySeconds", 0):
            yield f"{name_of(each)}: given up before a start may have ended"


def gateway_limits(objects: list[Object]) -> Iterator[str]:
    """The gateway admits at least what each Envoy behind it admits; Envoy Gateway's default is 1,024 of each."""
    for each in of_kind(objects, "Gateway"):
        envoy = yaml.safe_load(one(objects, "ConfigMap", "completion-edge")["data"]["envoy.yaml"])
        (monitor,) = envoy["overload_manager"]["resource_monitors"]
        (threshold,) = cluster_of(envoy)["circuit_breakers"]["thresholds"]
        needed = {
            "maxConnections": monitor["typed_config"]["max_active_downstream_connections"],
            "maxPendingRequests": threshold["max_pending_requests"],
            "maxParallelRequests": threshold["max_requests"],
        }
        policy = one(objects, "BackendTrafficPolicy", "completion")["spec"]
        admitted = policy.get("circuitBreaker", {})
        for key, least in needed.items():
            if admitted.get(key, _GATEWAY_DEFAULT) < least:
                yield f"{name_of(each)}: {key} is less than the {least} that the Envoys admit"


_GATEWAY_DEFAULT = 1024


POLICIES: tuple[Policy, ...] = (
    probes,
    resources,
    nodes,
    privileges,
    tokens,
    images,
    ports,
    grace,
    disruptions,
    references,
    secrets,
    rollouts,
    gateway_limits,
    admission,
    probe_credentials,
    proxies,
    quota,
    scaling,
)
