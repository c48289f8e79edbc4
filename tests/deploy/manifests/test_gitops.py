"""The examples for Argo CD and Flux roll the regions in one order, each when the one before has ended its canary."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.manifests.targets import REGIONS, rendered
from tests.support.kustomize import DEPLOY, Object, of_kind, one

ANNOTATION = "rollout.argoproj.io/workload-generation"


def renders(path: str, region: str) -> bool:
    """Return whether a path, relative to the repository, is the folder of a region."""
    return Path(DEPLOY.parent, path).resolve() == (DEPLOY / "regions" / region).resolve()


def test_argo_cd_takes_one_region_after_another() -> None:
    (found,) = (each["spec"] for each in rendered("gitops/argocd"))
    (generator,) = found["generators"]
    assert [each["region"] for each in generator["list"]["elements"]] == list(REGIONS)
    template, strategy = found["template"], found["strategy"]
    ((key, value),) = template["metadata"]["labels"].items()
    assert (value, strategy["type"]) == ("{{.region}}", "RollingSync")
    steps = [each["matchExpressions"] for each in strategy["rollingSync"]["steps"]]
    assert steps == [[{"key": key, "operator": "In", "values": [region]}] for region in REGIONS]
    assert "automated" not in template["spec"].get("syncPolicy", {}), "it is the ApplicationSet that says when"
    path = template["spec"]["source"]["path"]
    assert all(renders(path.replace("{{.region}}", region), region) for region in REGIONS)


def test_flux_takes_one_region_after_another_and_waits_for_its_rollout() -> None:
    source = one(rendered("gitops/flux"), "GitRepository", "completion")["metadata"]
    rollout = one(rendered("regions/us-east"), "Rollout", "completion-server")
    kind = {key: rollout[key] for key in ("apiVersion", "kind")}
    before: list[Object] = []
    for region in REGIONS:
        found = one(rendered("gitops/flux"), "Kustomization", f"completion-{region}")
        metadata, spec = found["metadata"], found["spec"]
        assert renders(spec["path"], region)
        assert spec["kubeConfig"]["secretRef"]["name"] == f"{region}-kubeconfig"
        assert spec["sourceRef"] == {"kind": "GitRepository", "name": source["name"]}
        assert metadata["namespace"] == source["namespace"]
        assert spec.get("dependsOn", []) == before
        assert spec["healthChecks"] == [kind | {key: rollout["metadata"][key] for key in ("namespace", "name")}]
        assert spec["healthCheckExprs"][0].items() >= kind.items()
        before = [{"name": metadata["name"]}]
    assert len(of_kind(rendered("gitops/flux"), "Kustomization")) == len(REGIONS)


@pytest.mark.parametrize(
    ("phase", "generation", "of_deployment", "expected"),
    [
        ("Healthy", 3, "7", "current"),
        ("Progressing", 3, "7", "in progress"),
        ("Paused", 3, "7", "in progress"),
        ("Degraded", 3, "7", "failed"),
        ("Healthy", 4, "7", "in progress"),  # not seen
        ("Healthy", 3, "6", "in progress"),  # its Deployment was not seen
    ],
)
def test_a_rollout_is_healthy_to_flux_after_its_canary(
    phase: str, generation: int, of_deployment: str, expected: str
) -> None:
    """Evaluates the expressions in their order; the status of a Rollout has numbers as texts."""
    names: dict[str, Any] = {
        "string": str,
        "metadata": SimpleNamespace(generation=generation, annotations={ANNOTATION: "7"}),
        "status": SimpleNamespace(phase=phase, observedGeneration="3", workloadObservedGeneration=of_deployment),
    }
    (expressions,) = of_kind(rendered("gitops/flux"), "Kustomization")[0]["spec"]["healthCheckExprs"]
    holds = {result: eval(expressions[result].replace("&&", "and"), names) for result in ("failed", "current")}
    assert next((result for result, each in holds.items() if each), "in progress") == expected
