"""Regions differ only in what they may; what they share fits together: the server's file, Envoy's, names in DNS."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests.targets import REGIONS, loaded, rendered, server_config
from tests.support.envoy import cluster_of
from tests.support.kustomize import DEPLOY, Object, copy_with_components, name_of, one, render, require_kustomize

EAST = "regions/us-east"
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
    assert "replicas" not in deployment, "an apply would set KEDA's number back"
    scaled = one(objects, "ScaledObject", "completion-server")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (values["replicas"], values["maxReplicas"])
    assert deployment["template"]["spec"]["nodeSelector"]["topology.kubernetes.io/region"] == values["cloudRegion"]
    assert server_config(objects).server.region == values["name"] == region
    assert one(objects, "ResourceQuota", "gpus")["spec"]["hard"]["requests.nvidia.com/gpu"] == values["maxGpus"]
    assert int(values["maxGpus"]) > values["maxReplicas"] > values["replicas"]
    variables = {each["name"]: each["value"] for each in edge_container(region)["env"]}
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


def edge_container(region: str = "us-east") -> Object:
    edge = one(rendered(f"regions/{region}"), "Deployment", "completion-edge")
    found: Object = edge["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_edge_runs_the_tested_file_and_asks_the_servers_and_says_how_the_region_is() -> None:
    objects = rendered(EAST)
    text = one(objects, "ConfigMap", "completion-edge")["data"]["envoy.yaml"]
    assert text == ENVOY_FILE.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    listeners = {each["name"]: each for each in document["static_resources"]["listeners"]}
    ports = {name: each["address"]["socket_address"]["port_value"] for name, each in listeners.items()}
    declared = {each["name"]: each["containerPort"] for each in edge_container()["ports"]}
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
