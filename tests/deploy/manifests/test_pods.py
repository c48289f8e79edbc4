"""What pods run: models, servers of several GPUs, and, with real programs, probes and the command of the load test."""

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import completion_pb2 as pb
from completion.v1 import completion_pb2_grpc as pb_grpc
from completion_server.engine.interface import NGRAM
from loadtest.__main__ import main
from loadtest.bench.runner.server import SCRIPTED
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario
from tests.deploy.manifests.targets import MODEL_SETTINGS, REGIONS, rendered, server_config
from tests.support.kustomize import Object, one
from tests.support.models import DRAFT, TARGET
from tests.support.server import FREE_PORTS, ask
from tests.support.server_process import flags, serving

STAND_INS = (*FREE_PORTS, *SCRIPTED, f"engine.model={TARGET}", "redis.secret_file=")
"""For what a pod has and a test has not: the models, an engine and a secret."""


@pytest.mark.full
async def test_a_server_answers_its_probes_refuses_strangers_and_ends_in_time(tmp_path: Path) -> None:
    config, objects = tmp_path / "server.toml", rendered("regions/us-east")
    config.write_text(one(objects, "ConfigMap", "completion-server")["data"]["server.toml"])
    pod = one(objects, "Deployment", "completion-server")["spec"]["template"]["spec"]
    async with (
        serving(tmp_path, "--json", "--config", str(config), *flags(*STAND_INS)) as server,
        grpc.aio.insecure_channel(server.ready["address"]) as channel,
    ):
        health, stub = health_pb2_grpc.HealthStub(channel), pb_grpc.CompletionServiceStub(channel)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            check = health_pb2.HealthCheckRequest(service=pod["containers"][0][probe]["grpc"]["service"])
            assert (await health.Check(check, timeout=5)).status == health_pb2.HealthCheckResponse.SERVING
        request = pb.CompleteRequest(session_id="s", sequence=1, prefix="return ", max_tokens=4)
        assert (await ask(stub, request)).code is grpc.StatusCode.UNAUTHENTICATED
        assert (await ask(stub, request, metadata=(("x-user-id", "alice"),))).end is not None
        session = stub.Session(metadata=(("x-user-id", "alice"),))
        await session.initial_metadata()
        server.process.terminate()
        # The rest of the grace period is preStop's.
        assert await server.ended(pod["terminationGracePeriodSeconds"] - 5) == 0
        assert await session.code() is grpc.StatusCode.UNAVAILABLE


def test_every_pod_of_the_load_test_has_a_share_by_a_command_that_is_understood() -> None:
    (job,) = (each for each in rendered("loadtest") if each["kind"] == "Job")
    spec = job["spec"]
    assert (spec["completionMode"], spec["backoffLimit"]) == ("Indexed", 0)
    assert spec["completions"] == spec["parallelism"], "they start at the same time"
    labels = spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    assert labels["job-name"] == job["metadata"]["name"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "loadtest"]
    assert {each["name"] for each in container["env"]} == {"JOB_COMPLETION_INDEX"}
    typed = " ".join(container["command"][3:])
    name, *arguments = typed.replace("$(JOB_COMPLETION_INDEX)", "3").replace("${START_AT}", "1790000000").split()
    with main.commands[name].make_context(name, arguments) as context:
        found = context.params
    assert (found["worker_index"], found["num_workers"], found["start_at"]) == (3, spec["completions"], 1790000000.0)
    assert Scenario.load(found["scenario"]).sessions >= found["num_workers"]
    (target,) = found["targets"]
    assert parse_target(target).kind == "grpc"
    assert found["as_json"]


def container(target: str) -> Object:
    found: Object = one(rendered(target), "Deployment", "completion-server")["spec"]["template"]["spec"]
    return {**found["containers"][0], "volumes": found["volumes"]}


def volume(target: str, name: str) -> Object:
    """Return the source of a volume."""
    (found,) = (each for each in container(target)["volumes"] if each["name"] == name)
    return {key: value for key, value in found.items() if key != "name"}


def mount(target: str, name: str) -> Object:
    (found,) = (each for each in container(target)["volumeMounts"] if each["name"] == name)
    return dict(found)


def test_a_regions_models_are_an_image_and_need_no_claim() -> None:
    assert volume("regions/us-east", "models").keys() == {"image"}
    assert mount("regions/us-east", "models") == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert "PersistentVolumeClaim" not in {each["kind"] for each in rendered("regions/us-east")}


@pytest.mark.parametrize(
    ("component", "of_pod", "name", "mode"),
    [
        ("host-path", "models", "completion-models", "ReadOnlyMany"),
        ("node-cache", "cache", "completion-cache", "ReadWriteMany"),
    ],
)
def test_a_folder_of_each_node_is_a_volume_that_only_its_claim_takes(
    component: str, of_pod: str, name: str, mode: str
) -> None:
    held, claim = (one(rendered(component), kind, name) for kind in ("PersistentVolume", "PersistentVolumeClaim"))
    assert held["spec"]["claimRef"] == {"namespace": claim["metadata"]["namespace"], "name": name}
    assert claim["spec"]["volumeName"] == name
    for each in (held, claim):
        assert (each["spec"]["storageClassName"], each["spec"]["accessModes"]) == ("", [mode])
    assert held["spec"]["hostPath"]["type"] == "Directory", "a node without the folder is told in the pod's events"
    assert volume(component, of_pod)["persistentVolumeClaim"]["claimName"] == name
    assert bool(mount(component, of_pod).get("subPath")) == (of_pod == "models"), "a new revision is a rollout"


def test_streamed_weights_have_an_address_and_credentials() -> None:
    config = server_config(list(rendered("object-storage")))
    assert config.engine.vllm["load_format"] == "runai_streamer"
    assert config.engine.vllm["model_weights"].startswith("s3://")
    assert volume("object-storage", "models").keys() == {"image"}
    environment = {each["name"]: each["value"] for each in container("object-storage")["env"]}
    folder = mount("object-storage", "object-storage")["mountPath"]
    assert environment["AWS_SHARED_CREDENTIALS_FILE"].startswith(f"{folder}/")
    policy = one(rendered("object-storage"), "NetworkPolicy", "completion-server-to-object-storage")["spec"]
    assert [each["port"] for rule in policy["egress"] for each in rule["ports"]] == [443]


@pytest.mark.parametrize(("component", "num_gpus"), [("tensor-parallel", 2), ("tensor-parallel-4", 4)])
def test_a_server_of_several_gpus_has_them_in_one_pod_with_shared_memory(component: str, num_gpus: int) -> None:
    alone, together = (container(each)["resources"] for each in ("regions/us-east", component))
    assert server_config(list(rendered(component))).engine.tensor_parallel_size == num_gpus
    assert together["requests"]["nvidia.com/gpu"] == together["limits"]["nvidia.com/gpu"] == str(num_gpus)
    shared = volume(component, "shm")["emptyDir"]
    assert shared["medium"] == "Memory"
    assert gibibytes(shared["sizeLimit"]) >= 2 * num_gpus
    # What is in shared memory counts as the container's.
    needed = gibibytes(alone["limits"]["memory"]) + gibibytes(shared["sizeLimit"])
    assert gibibytes(together["limits"]["memory"]) >= needed
    # The component states a number, because kustomize can't multiply: it must be that of each region.
    assert {num_gpus * quota(f"regions/{region}") for region in REGIONS} == {quota(component)}


def quota(target: str) -> int:
    return int(one(rendered(target), "ResourceQuota", "gpus")["spec"]["hard"]["requests.nvidia.com/gpu"])


def gibibytes(quantity: str) -> int:
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi"))


@pytest.mark.parametrize("name", MODEL_SETTINGS)
def test_the_settings_of_a_model_fit_together(name: str) -> None:
    config = server_config(list(rendered(f"models/{name}")))
    longest = config.prompt.max_prompt_tokens + config.limits.max_tokens
    assert config.engine.max_model_len is not None
    assert config.engine.max_model_len >= longest + config.engine.num_speculative_tokens
    assert config.scheduling.max_slots <= config.engine.max_num_seqs
    assert config.engine.draft_model in {NGRAM, str(DRAFT)}
