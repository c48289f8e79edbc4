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

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def fits(self, selector: Object) -> bool:
        """Return whether a selector of labels is for this pod."""
        assert set(selector) <= {"matchLabels"}, "only labels are evaluated"
        labels = {"app.kubernetes.io/name": self.name, **self.labels}
        return bool(selector.get("matchLabels", {}).items() <= labels.items())


PEERS = (
    *map(Peer, ("completion-server", "completion-edge", "redis", "loadtest", "completion-probe", "stranger")),
    *(Peer(name, "monitoring") for name in ("prometheus", "opentelemetry-collector", "grafana")),
    Peer("envoy", "envoy-gateway-system", {"app.kubernetes.io/component": "proxy"}),
    Peer("coredns", "kube-system", {"k8s-app": "kube-dns"}),
    Peer("keda-operator", "keda"),
    Peer("argo-rollouts", "argo-rollouts"),
    Peer("prometheus", "elsewhere"),
)
PORTS = (53, 443, 4317, 6379, 8080, 9090, 9464, 9465, 9901, 9902, 26379, 50050, 50051, 50052)


def allowed(objects: Sequence[Object], namespace: str = "completion") -> set[tuple[str, str, int]]:
    """Return the connections (from, to, port) that a namespace may open or take, of those between PEERS on PORTS."""
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    return {
        (str(source), str(target), port)
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
        and pod.fits(each["spec"]["podSelector"])
    ]
    rules = [rule for each in selecting for rule in each.get(direction.lower(), ())]
    end = "from" if direction == "Ingress" else "to"
    return not selecting or any(
        any(_is_peer(each, pod, peer) for each in rule.get(end, [{"namespaceSelector": {}}]))
        and any(each["port"] == port for each in rule.get("ports", [{"port": port}]))
        for rule in rules
    )


def _is_peer(selector: Object, pod: Peer, peer: Peer) -> bool:
    if "ipBlock" in selector:
        return False  # the peers are pods
    own = {"matchLabels": {"kubernetes.io/metadata.name": pod.namespace}}
    wanted = selector.get("namespaceSelector", own).get("matchLabels", {})
    is_there = wanted.items() <= {"kubernetes.io/metadata.name": peer.namespace}.items()
    return is_there and peer.fits(selector.get("podSelector", {}))
