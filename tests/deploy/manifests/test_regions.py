"""Regions differ only in what they may; what they share fits together: the server's file, Envoy's, names in DNS."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests.targets import REGIONS, rendered, server_config
from tests.support.envoy import Envoy, adapted, cluster_of, load_shipped, require_envoy
from tests.support.kustomize import DEPLOY, Object, copy_with_components, name_of, one, render, require_kustomize
from tests.support.redis_servers import wait_until

ENVOY_FILE = DEPLOY / "envoy" / "envoy.yaml"

MAY_DIFFER = {
    "ScaledObject/completion-server spec.minReplicaCount",
    "ScaledObject/completion-server spec.maxReplicaCount",
    "Deployment/completion-server spec.template.spec.nodeSelector.topology.kubernetes.io/region",
    "Deployment/completion-server spec.template.spec.nodeSelector.nvidia.com/gpu.product",
    "Deployment/completion-server spec.template.spec.containers.0.env.COMPLETION_SERVER__SERVER__REGION",
    "Deployment/completion-edge spec.template.spec.containers.0.env.COMPLETION_REGION_SERVERS",
    "ResourceQuota/gpus spec.hard.requests.nvidia.com/gpu",
    "GRPCRoute/completion spec.hostnames.1",
    "HTTPRoute/completion-region-health spec.hostnames.0",
    "Certificate/completion-edge spec.dnsNames.1",
    "Deployment/completion-server spec.template.spec.containers.0.image",
    "Deployment/completion-server spec.template.spec.volumes.1.image.reference",
}
SIZES = {"minReplicaCount", "maxReplicaCount", "COMPLETION_REGION_SERVERS", "com/gpu", "product"}
IMAGES = {"image", "reference"}
MUST_DIFFER = {each for each in MAY_DIFFER if each.rpartition(".")[2] not in SIZES | IMAGES}


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
    objects = rendered(target)
    return {f"{name_of(each)} {path[1:]}": value for each in objects for path, value in leaves(each, "")}


@pytest.mark.parametrize("region", REGIONS[1:])
def test_regions_differ_only_in_what_they_may(region: str) -> None:
    first, other = values_of(f"regions/{REGIONS[0]}"), values_of(f"regions/{region}")
    assert first.keys() == other.keys()
    differing = {path for path, value in first.items() if value != other[path]}
    assert differing <= MAY_DIFFER
    assert differing >= MUST_DIFFER


def values_of_region(region: str) -> Any:
    return yaml.safe_load((DEPLOY / "regions" / region / "region.yaml").read_text(encoding="utf-8"))["spec"]


@pytest.mark.parametrize("region", REGIONS)
def test_a_regions_values_arrive(region: str) -> None:
    values, objects = values_of_region(region), list(rendered(f"regions/{region}"))
    deployment = one(objects, "Deployment", "completion-server")["spec"]
    assert "replicas" not in deployment, "an apply would set KEDA's number back"
    scaled = one(objects, "ScaledObject", "completion-server")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (values["replicas"], values["maxReplicas"])
    assert deployment["template"]["spec"]["nodeSelector"]["topology.kubernetes.io/region"] == values["cloudRegion"]
    assert server_config(objects).server.region == values["name"] == region
    assert one(objects, "ResourceQuota", "gpus")["spec"]["hard"]["requests.nvidia.com/gpu"] == values["maxGpus"]
    assert int(values["maxGpus"]) > values["maxReplicas"] > values["replicas"]
    variables = {each["name"]: each["value"] for each in edge_container(region)["env"]}
    assert variables == {
        "COMPLETION_REGION_SERVERS": str(values["replicas"]),
        "COMPLETION_REGION_MIN_SHARE": "0.5",
    }
    assert "replaced" not in str(objects)
    assert not [each for each in objects if each["kind"] == "Region"]


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
    assert spec["replicas"] == values_of_region("us-east")["replicas"]
    with pytest.raises(AssertionError, match="ScaledObject"):
        render(copy_with_components("us-east", ["-keda"], tmp_path / "deploy"))


@pytest.mark.parametrize("region", REGIONS)
def test_the_global_name_leads_to_the_regions_own_names(region: str) -> None:
    endpoint = one(rendered("global"), "DNSEndpoint", f"completion-{region}")
    # No package registry offers external-dns's types: these are the keys of its docs/sources/crd.md.
    assert (endpoint["apiVersion"], set(endpoint["spec"])) == ("externaldns.k8s.io/v1alpha1", {"endpoints"})
    (record,) = endpoint["spec"]["endpoints"]
    assert set(record) == {"dnsName", "recordType", "targets", "recordTTL", "setIdentifier", "providerSpecific"}
    assert set(map(type, record["targets"])) == {str}
    assert isinstance(record["recordTTL"], int)
    objects, values = rendered(f"regions/{region}"), values_of_region(region)
    route = one(objects, "GRPCRoute", "completion")["spec"]
    assert route["hostnames"] == [record["dnsName"], *record["targets"]]
    assert record["setIdentifier"] == region
    properties = {each["name"]: each["value"] for each in record["providerSpecific"]}
    assert properties.keys() == {"aws/region", "aws/health-check-id"}
    assert properties["aws/region"] == values["cloudRegion"]
    assert one(objects, "Certificate", "completion-edge")["spec"]["dnsNames"] == route["hostnames"]


def test_no_record_is_at_the_apex_of_its_zone() -> None:
    text = (DEPLOY / "global" / "kustomization.yaml").read_text(encoding="utf-8")
    zone, *of_region = re.findall(r"--domain-filter=(\S+)", text)
    assert len(rendered("global")) == len(REGIONS)
    for each in rendered("global"):
        (record,) = each["spec"]["endpoints"]
        assert record["recordType"] == "CNAME"
        assert record["dnsName"].endswith(f".{zone}"), "DNS allows no CNAME at a zone's apex"
    routes = [one(rendered("regions/us-east"), *each)["spec"]["hostnames"] for each in ROUTES]
    assert of_region == [name for names in routes for name in names if name != record["dnsName"]]


ROUTES = (("GRPCRoute", "completion"), ("HTTPRoute", "completion-region-health"))


def edge_container(region: str = "us-east") -> Object:
    edge = one(rendered(f"regions/{region}"), "Deployment", "completion-edge")
    found: Object = edge["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_edge_runs_the_tested_file() -> None:
    objects = rendered("regions/us-east")
    text = one(objects, "ConfigMap", "completion-edge")["data"]["envoy.yaml"]
    assert text == ENVOY_FILE.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    listeners = {each["name"]: each for each in document["static_resources"]["listeners"]}
    cluster = cluster_of(document)
    listening = {name: each["address"]["socket_address"]["port_value"] for name, each in listeners.items()}
    declared = {each["name"]: each["containerPort"] for each in edge_container()["ports"]}
    assert declared == {
        "grpc": listening["editors"],
        "health": listening["region-health"],
        "metrics": listening["metrics"],
    }
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    service = one(objects, "Service", endpoint["address"])["spec"]
    assert service["clusterIP"] == "None", "Envoy must see each replica"
    assert endpoint["port_value"] in {each["port"] for each in service["ports"]}
    assert cluster["lb_policy"] == "MAGLEV"
    pods = one(objects, "Deployment", "completion-server")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= pods.items()


def test_the_health_of_a_region_is_its_edges() -> None:
    objects = rendered("regions/us-east")
    route = one(objects, "HTTPRoute", "completion-region-health")["spec"]
    (rule,) = route["rules"]
    (match,), (backend,) = rule["matches"], rule["backendRefs"]
    document = yaml.safe_load(ENVOY_FILE.read_text(encoding="utf-8"))
    (listener,) = (each for each in document["static_resources"]["listeners"] if each["name"] == "region-health")
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    filters = {each["name"]: each["typed_config"] for each in manager["http_filters"]}
    answered = filters["envoy.filters.http.health_check"]["headers"][0]["string_match"]["exact"]
    assert match == {"path": {"type": "Exact", "value": answered}, "method": "GET"}
    assert backend == {"name": "completion-edge", "port": listener["address"]["socket_address"]["port_value"]}


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


@pytest.mark.full
def test_the_real_envoy_accepts_the_file_and_the_rendered_options() -> None:
    program, *options = edge_container()["command"]
    assert program == "envoy"
    options[options.index("/etc/envoy/envoy.yaml")] = str(ENVOY_FILE)
    command = [require_envoy(), "--mode", "validate", *options, "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "eprecated" not in done.stderr


@pytest.mark.full
def test_the_prestop_hook_drains_the_real_envoy() -> None:
    require_envoy()
    edge = edge_container()
    shell, option, script = edge["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("bash", "-c")
    drain_s = edge["command"][edge["command"].index("--drain-time-s") + 1]
    assert f"sleep {drain_s}\n" in script
    with Envoy.running(adapted(load_shipped(ENVOY_FILE), []), 0, drain_s=1) as envoy:
        host, _, port = envoy.admin.rpartition(":")
        script = script.replace("/127.0.0.1/9901", f"/{host}/{port}").replace(f"sleep {drain_s}", "sleep 0")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30)
        assert re.match(r"HTTP/1.1 200", done.stdout), done.stdout
        wait_until(lambda: is_closed(envoy.address))


def is_closed(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) != 0
