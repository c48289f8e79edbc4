"""Regions differ only in what they may, have the planned servers, and are rolled in one order; what they share fits."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from loadtest.planning.command import plan
from tests.deploy.manifests.targets import EAST, REGIONS, container_of, loaded, rendered, server_config
from tests.support.envoy import cluster_of
from tests.support.kustomize import (
    DEPLOY,
    Object,
    copy_with_components,
    name_of,
    of_kind,
    one,
    render,
    require_kustomize,
)

ENVOY_FILE = DEPLOY / "envoy" / "envoy.yaml"
SERVER = "Deployment/completion-server spec.template.spec"
MUST_DIFFER = {
    f"{SERVER}.nodeSelector.topology.kubernetes.io/region",
    f"{SERVER}.containers.0.env.COMPLETION_SERVER__SERVER__REGION",
    "GRPCRoute/completion spec.hostnames.1",
    "HTTPRoute/completion-region-health spec.hostnames.0",
    "Certificate/completion-edge spec.dnsNames.1",
}
MAY_DIFFER = MUST_DIFFER | {
    "ScaledObject/completion-server spec.minReplicaCount",
    "ScaledObject/completion-server spec.maxReplicaCount",
    "ResourceQuota/gpus spec.hard.requests.nvidia.com/gpu",
    "Deployment/completion-edge spec.template.spec.containers.0.env.COMPLETION_REGION_SERVERS",
    f"{SERVER}.nodeSelector.nvidia.com/gpu.product",
    f"{SERVER}.containers.0.image",
    f"{SERVER}.volumes.1.image.reference",
}


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each value with its path. Variables count by their names, other list items by their places."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and path.endswith(".env"):
        items = [(each["name"], each.get("value", each)) for each in value]
    elif isinstance(value, list):
        items = list(enumerate(value))
    if not items:
        yield path, value
    for key, below in items:
        yield from leaves(below, f"{path}.{key}")


def values_of(target: str) -> dict[str, Any]:
    return {f"{name_of(each)} {path[1:]}": value for each in rendered(target) for path, value in leaves(each, "")}


def test_regions_differ_only_in_what_they_may() -> None:
    first, *others = (values_of(f"regions/{region}") for region in REGIONS)
    for other in others:
        assert first.keys() == other.keys()
        assert MUST_DIFFER <= {path for path, value in first.items() if value != other[path]} <= MAY_DIFFER


@pytest.mark.parametrize("region", REGIONS)
def test_a_regions_values_arrive_and_the_global_name_leads_there(region: str) -> None:
    values, objects = loaded(f"regions/{region}/region.yaml")["spec"], list(rendered(f"regions/{region}"))
    deployment = one(objects, "Deployment", "completion-server")["spec"]
    scaled = one(objects, "ScaledObject", "completion-server")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (values["replicas"], values["maxReplicas"])
    assert deployment["template"]["spec"]["nodeSelector"]["topology.kubernetes.io/region"] == values["cloudRegion"]
    assert server_config(objects).server.region == values["name"] == region
    assert one(objects, "ResourceQuota", "gpus")["spec"]["hard"]["requests.nvidia.com/gpu"] == values["maxGpus"]
    assert int(values["maxGpus"]) > values["maxReplicas"] > values["replicas"]
    variables = {each["name"]: each["value"] for each in container_of("completion-edge", f"regions/{region}")["env"]}
    assert variables == {"COMPLETION_REGION_SERVERS": str(values["replicas"]), "COMPLETION_REGION_MIN_SHARE": "0.5"}
    assert "replaced" not in str(objects)
    assert not [each for each in objects if each["kind"] == "Region"]

    endpoint = one(rendered("global"), "DNSEndpoint", f"completion-{region}")
    # No package registry offers external-dns's types: these are the keys of its docs/sources/crd.md.
    assert (endpoint["apiVersion"], set(endpoint["spec"])) == ("externaldns.k8s.io/v1alpha1", {"endpoints"})
    (record,) = map(dict, endpoint["spec"]["endpoints"])
    properties = {each["name"]: each["value"] for each in record.pop("providerSpecific")}
    assert properties.keys() == {"aws/region", "aws/health-check-id"}
    assert properties["aws/region"] == values["cloudRegion"]
    names = [record.pop("dnsName"), *record.pop("targets")]
    assert isinstance(record.pop("recordTTL"), int)
    assert record == {"recordType": "CNAME", "setIdentifier": region}
    assert one(objects, "GRPCRoute", "completion")["spec"]["hostnames"] == names
    assert one(objects, "Certificate", "completion-edge")["spec"]["dnsNames"] == names


def test_a_region_gets_other_images_by_a_command_that_changes_no_other_line_and_no_other_region(tmp_path: Path) -> None:
    deploy = shutil.copytree(DEPLOY, tmp_path / "deploy")
    first, *others = (deploy / "regions" / region for region in REGIONS)
    images = {each: f"registry.test/{each}@sha256:{'5f' * 32}" for each in ("completion-server", "completion-models")}
    before = (first / "kustomization.yaml").read_text(encoding="utf-8").splitlines()
    edit = ["edit", "set", "image", *(f"{name}={image}" for name, image in images.items())]
    subprocess.run([require_kustomize(), *edit], cwd=first, check=True, timeout=60)
    after = (first / "kustomization.yaml").read_text(encoding="utf-8").splitlines()
    changed = [new.split(":")[0] for old, new in zip(before, after, strict=True) if old != new]
    assert sorted(changed) == ["  newName", "  newName", "- digest", "- digest"]
    pod = one(render(first), "Deployment", "completion-server")["spec"]["template"]["spec"]
    mounted = [volume["image"]["reference"] for volume in pod["volumes"] if "image" in volume]
    assert [pod["containers"][0]["image"], *mounted] == list(images.values())
    for region in others:
        assert render(region) == list(rendered(f"regions/{region.name}"))


def test_a_region_without_keda_has_the_planned_number_and_no_canary(tmp_path: Path) -> None:
    spec = one(rendered("-canary+-keda"), "Deployment", "completion-server")["spec"]
    assert spec["replicas"] == loaded(f"{EAST}/region.yaml")["spec"]["replicas"]
    with pytest.raises(AssertionError, match="ScaledObject"):
        render(copy_with_components("us-east", ["-keda"], tmp_path / "deploy"))


def test_no_record_is_at_the_apex_of_its_zone() -> None:
    text = (DEPLOY / "global" / "kustomization.yaml").read_text(encoding="utf-8")
    zone, *of_region = re.findall(r"--domain-filter=(\S+)", text)
    assert len(rendered("global")) == len(REGIONS)
    names = {each["spec"]["endpoints"][0]["dnsName"] for each in rendered("global")}
    assert all(name.endswith(f".{zone}") for name in names), "DNS allows no CNAME at a zone's apex"
    routes = (("GRPCRoute", "completion"), ("HTTPRoute", "completion-region-health"))
    hosts = [name for each in routes for name in one(rendered(EAST), *each)["spec"]["hostnames"]]
    assert of_region == [name for name in hosts if name not in names]


def test_the_edge_runs_the_tested_file_and_asks_the_servers_and_says_how_the_region_is() -> None:
    objects = rendered(EAST)
    text = one(objects, "ConfigMap", "completion-edge")["data"]["envoy.yaml"]
    assert text == ENVOY_FILE.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    listeners = {each["name"]: each for each in document["static_resources"]["listeners"]}
    ports = {name: each["address"]["socket_address"]["port_value"] for name, each in listeners.items()}
    declared = {each["name"]: each["containerPort"] for each in container_of("completion-edge")["ports"]}
    assert declared == {"grpc": ports["editors"], "health": ports["region-health"], "metrics": ports["metrics"]}

    cluster = cluster_of(document)
    assert cluster["lb_policy"] == "MAGLEV"
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    service = one(objects, "Service", endpoint["address"])["spec"]
    assert service["clusterIP"] == "None", "Envoy must see each replica"
    assert endpoint["port_value"] in {each["port"] for each in service["ports"]}
    pods = one(objects, "Deployment", "completion-server")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= pods.items()

    (rule,) = one(objects, "HTTPRoute", "completion-region-health")["spec"]["rules"]
    manager = listeners["region-health"]["filter_chains"][0]["filters"][0]["typed_config"]
    filters = {each["name"]: each["typed_config"] for each in manager["http_filters"]}
    answered = filters["envoy.filters.http.health_check"]["headers"][0]["string_match"]["exact"]
    assert rule["matches"] == [{"path": {"type": "Exact", "value": answered}, "method": "GET"}]
    assert rule["backendRefs"] == [{"name": "completion-edge", "port": ports["region-health"]}]


def test_the_readme_checks_the_health_of_each_region_by_its_name() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    command = re.search(r"for region in (.+); do.*\n.*create-health-check (.+\n.+)\n *done", text)
    assert command is not None
    options = dict(each.split("=", 1) for each in re.split(r"[\s,\\]+", command[2]) if "=" in each)
    assert tuple(command[1].split()) == REGIONS
    for region in REGIONS:
        objects = rendered(f"regions/{region}")
        name = options["FullyQualifiedDomainName"].replace("$region", region).replace("YOUR-DOMAIN", "example.com")
        route = one(objects, "HTTPRoute", "completion-region-health")["spec"]
        assert route["hostnames"] == [name]
        assert options["ResourcePath"] == route["rules"][0]["matches"][0]["path"]["value"]
        listeners = {each["name"]: each for each in one(objects, "Gateway", "completion")["spec"]["listeners"]}
        listener = listeners[route["parentRefs"][0]["sectionName"]]
        assert (options["Type"], int(options["Port"])) == (listener["protocol"], listener["port"])


INPUTS = DEPLOY / "plan" / "inputs.toml"


@cache
def planned(*options: str) -> Any:
    result = CliRunner().invoke(plan, ["--inputs", str(INPUTS), "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def needed_servers(region: str) -> int:
    (found,) = (each["needed_gpus"] for each in planned()["regions"] if each["name"] == region)
    return int(found // planned()["inputs"]["gpus_per_server"])


def test_the_regions_survive_the_loss_of_one() -> None:
    assert planned()["inputs"]["survive"] == 1
    assert {each["name"] for each in planned()["regions"]} == set(REGIONS)
    assert all(each["busy_if_lost"] <= 1 for each in planned()["regions"])


@pytest.mark.parametrize("region", REGIONS)
def test_a_region_has_the_servers_and_the_gpu_of_the_plan(region: str) -> None:
    values = loaded(f"regions/{region}/region.yaml")["spec"]
    assert values["replicas"] == needed_servers(region)
    assert f"-{planned()['inputs']['gpu_memory_gb']:g}GB-" in values["gpu"]


def test_the_base_and_the_servers_file_have_the_planned_numbers() -> None:
    servers, gpu, sessions = needed_servers("us-east"), planned()["inputs"], planned()["demand"]["sessions"]
    config = server_config(list(rendered("regions/us-east")))
    assert loaded("base/server/deployment.yaml")["spec"]["replicas"] == config.admission.assumed_replicas == servers
    assert config.engine.num_speculative_tokens == gpu["draft_tokens"]
    assert config.scheduling.max_slots == gpu["slots"]
    assert config.engine.tensor_parallel_size == gpu["gpus_per_server"]
    # The sessions of two lost regions fit.
    assert min(map(needed_servers, REGIONS)) * (config.admission.max_sessions or 0) >= sessions
    text = (DEPLOY / "base" / "server" / "server.toml").read_text(encoding="utf-8")
    num = sum(map(needed_servers, REGIONS))
    assert f"# {sessions:,} sessions on {num} GPUs are {sessions / num:.0f} for each server." in text
    assert f"a server has {sessions / servers:,.0f}." in text


@pytest.mark.parametrize("options", [(), ("--gpus-per-region", "4"), ("--kv-dtype", "fp8")])
def test_the_document_states_the_plan(options: tuple[str, ...]) -> None:
    text = (DEPLOY.parent / "docs" / "capacity.md").read_text(encoding="utf-8").replace("**", "")
    region = planned(*options)["regions"][0]
    shares = (region[name] for name in ("busy", "busy_if_lost", "hit_share", "hit_share_if_lost"))
    assert " | {} | {:.0%}, {:.0%} | {:.0%}, {:.0%} |".format(region["gpus"], *shares) in text


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
    rollout = one(rendered("regions/us-east"), "Rollout", "completion-server")
    kind = {key: rollout[key] for key in ("apiVersion", "kind")}
    before: list[Object] = []
    for region in REGIONS:
        found = one(rendered("gitops/flux"), "Kustomization", f"completion-{region}")
        spec = found["spec"]
        assert renders(spec["path"], region)
        assert spec["kubeConfig"]["secretRef"]["name"] == f"{region}-kubeconfig"
        assert spec.get("dependsOn", []) == before
        assert spec["healthChecks"] == [kind | {key: rollout["metadata"][key] for key in ("namespace", "name")}]
        assert spec["healthCheckExprs"][0].items() >= kind.items()
        before = [{"name": found["metadata"]["name"]}]


@pytest.mark.parametrize(
    ("phase", "generation", "of_deployment", "expected"),
    [
        ("Healthy", 3, "7", "current"),
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
