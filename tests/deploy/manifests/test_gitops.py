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


def flux() -> list[Object]:
    return of_kind(rendered("gitops/flux"), "Kustomization")


def test_argo_cd_takes_one_region_after_another() -> None:
    (found,) = (each["spec"] for each in rendered("gitops/argocd"))
    (generator,) = found["generators"]
    assert [each["region"] for each in generator["list"]["elements"]] == list(REGIONS)
    template = found["template"]
    ((key, value),) = template["metadata"]["labels"].items()
    assert value == "{{.region}}"
    assert found["strategy"]["type"] == "RollingSync"
    steps = [each["matchExpressions"] for each in found["strategy"]["rollingSync"]["steps"]]
    assert steps == [[{"key": key, "operator": "In", "values": [region]}] for region in REGIONS]
    assert "automated" not in template["spec"].get("syncPolicy", {}), "it is the ApplicationSet that says when"
    for region in REGIONS:
        assert renders(template["spec"]["source"]["path"].replace("{{.region}}", region), region)


def test_flux_takes_one_region_after_another() -> None:
    source = one(rendered("gitops/flux"), "GitRepository", "completion")["metadata"]
    before: list[Object] = []
    for region in REGIONS:
        metadata, spec = (one(flux(), "Kustomization", f"completion-{region}")[key] for key in ("metadata", "spec"))
        assert renders(spec["path"], region)
        assert spec["kubeConfig"]["secretRef"]["name"] == f"{region}-kubeconfig"
        assert spec["sourceRef"] == {"kind": "GitRepository", "name": source["name"]}
        assert metadata["namespace"] == source["namespace"]
        assert spec.get("dependsOn", []) == before
        before = [{"name": metadata["name"]}]
    assert len(flux()) == len(REGIONS)


def test_flux_waits_for_the_rollout_of_a_region() -> None:
    rollout = one(rendered("regions/us-east"), "Rollout", "completion-server")
    named = {key: rollout["metadata"][key] for key in ("namespace", "name")}
    kind = {key: rollout[key] for key in ("apiVersion", "kind")}
    for each in flux():
        assert each["spec"]["healthChecks"] == [kind | named]
        assert {key: each["spec"]["healthCheckExprs"][0][key] for key in kind} == kind


def health(phase: str, generation: int = 3, observed: str = "3", of_deployment: str = "7") -> str:
    """Return what Flux makes of a Rollout, whose status has numbers as texts, by the expressions in their order."""
    names: dict[str, Any] = {
        "string": str,
        "metadata": SimpleNamespace(generation=generation, annotations={ANNOTATION: "7"}),
        "status": SimpleNamespace(phase=phase, observedGeneration=observed, workloadObservedGeneration=of_deployment),
    }
    (expressions,) = flux()[0]["spec"]["healthCheckExprs"]
    for result in ("failed", "current"):
        if eval(expressions[result].replace("&&", "and"), names):
            return result
    return "in progress"


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        ({"phase": "Healthy"}, "current"),
        ({"phase": "Progressing"}, "in progress"),
        ({"phase": "Paused"}, "in progress"),
        ({"phase": "Degraded"}, "failed"),
        ({"phase": "Healthy", "generation": 4}, "in progress"),
        ({"phase": "Healthy", "of_deployment": "6"}, "in progress"),
    ],
    ids=["healthy", "progressing", "paused", "taken back", "not seen", "its Deployment not seen"],
)
def test_a_rollout_is_healthy_to_flux_after_its_canary(rollout: dict[str, Any], expected: str) -> None:
    assert health(**rollout) == expected
