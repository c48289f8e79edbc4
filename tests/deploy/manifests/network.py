"""Evaluates NetworkPolicies as Kubernetes defines them: a selected pod may only do what some policy allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.kustomize import Object


@dataclass(frozen=True)
class Peer:
    """A pod, or the pods of a program, by what policies select them by."""

    name: str
    namespace: str = "completion"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": self.name, **self.labels}


SERVER, EDGE, REDIS, LOADTEST, PROBE = map(
    Peer, ("completion-server", "completion-edge", "redis", "loadtest", "completion-probe")
)
PROMETHEUS = Peer("prometheus", "monitoring")
COLLECTOR = Peer("opentelemetry-collector", "monitoring")
GATEWAY = Peer("envoy", "envoy-gateway-system", {"app.kubernetes.io/component": "proxy"})
DNS = Peer("coredns", "kube-system", {"k8s-app": "kube-dns"})
STRANGER = Peer("stranger")
OUTSIDER = Peer("prometheus", "elsewhere")
GRAFANA = Peer("grafana", "monitoring")
KEDA = Peer("keda-operator", "keda")
ARGO = Peer("argo-rollouts", "argo-rollouts")
PEERS = (
    *(SERVER, EDGE, REDIS, LOADTEST, PROBE, PROMETHEUS, COLLECTOR, GRAFANA),
    *(GATEWAY, DNS, KEDA, ARGO, STRANGER, OUTSIDER),
)
PORTS = (53, 443, 4317, 6379, 8080, 9090, 9464, 9465, 9901, 9902, 26379, 50050, 50051, 50052)

Connection = tuple[str, str, int]


def allowed(objects: Sequence[Object], namespace: str = "completion") -> set[Connection]:
    """Return the connections (from, to, port) that a namespace may open or take, of those between PEERS on PORTS."""
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    return {
        (f"{source.namespace}/{source.name}", f"{target.namespace}/{target.name}", port)
        for source in PEERS
        for target in PEERS
        for port in PORTS
        if namespace in {source.namespace, target.namespace}
        and _passes(policies, source, target, port, "Egress")
        and _passes(policies, target, source, port, "Ingress")
    }


def _passes(policies: Sequence[Object], pod: Peer, peer: Peer, port: int, direction: str) -> bool:
    selecting = [
        each["spec"]
        for each in policies
        if each["metadata"]["namespace"] == pod.namespace
        and direction in each["spec"]["policyTypes"]
        and _selects(each["spec"]["podSelector"], pod)
    ]
    return not selecting or any(
        _matches(rule, pod, peer, port, direction) for each in selecting for rule in each.get(direction.lower(), ())
    )


def _matches(rule: Object, pod: Peer, peer: Peer, port: int, direction: str) -> bool:
    peers = rule.get("from" if direction == "Ingress" else "to")
    ports = rule.get("ports")
    is_peer = peers is None or any(_is_peer(each, pod, peer) for each in peers)
    return is_peer and (ports is None or any(each["port"] == port for each in ports))


def _is_peer(selector: Object, pod: Peer, peer: Peer) -> bool:
    if "ipBlock" in selector:
        return False  # the peers are pods
    namespaces = selector.get("namespaceSelector")
    if namespaces is None:
        is_there = peer.namespace == pod.namespace
    else:
        is_there = namespaces["matchLabels"] == {"kubernetes.io/metadata.name": peer.namespace}
    return is_there and _selects(selector.get("podSelector", {}), peer)


def _selects(selector: Object, pod: Peer) -> bool:
    assert set(selector) <= {"matchLabels"}, "only labels are evaluated"
    return bool(selector.get("matchLabels", {}).items() <= pod.all_labels.items())
