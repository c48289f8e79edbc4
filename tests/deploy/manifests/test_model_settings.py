"""Where a region's models come from, the settings of models that anyone can get, and servers of several GPUs."""

import re

import pytest

from completion_server.engine.interface import NGRAM
from tests.deploy.manifests.targets import MODEL_SETTINGS, REGIONS, rendered, server_config
from tests.support.kustomize import DEPLOY, Object, one
from tests.support.models import DRAFT

_KV = re.compile(r"(\d+) layers, (\d+) heads of (\d+) in (\d+) bytes")
_SUM = re.compile(r"make ([\d,]+) bytes a token; ([\d.]+) GB hold ([\d,]+) tokens")
_MEMORY = re.compile(r"has ([\d.]+) GB, of which vLLM uses (\d+)%; ([\d. +]+) GB of weights and ([\d.]+) GB")
_SESSIONS = re.compile(r"prompts of (\d+) sessions at ([\d,]+) tokens")


def pod(target: str) -> Object:
    found: Object = one(rendered(target), "Deployment", "completion-server")["spec"]["template"]["spec"]
    return found


def volume(target: str, name: str) -> Object:
    (found,) = (each for each in pod(target)["volumes"] if each["name"] == name)
    return {key: value for key, value in found.items() if key != "name"}


def mount(target: str, name: str) -> Object:
    (found,) = (each for each in pod(target)["containers"][0]["volumeMounts"] if each["name"] == name)
    return dict(found)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_a_regions_models_are_an_image_and_need_no_claim() -> None:
    objects = rendered("regions/us-east")
    assert volume("regions/us-east", "models").keys() == {"image"}
    assert mount("regions/us-east", "models") == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert "PersistentVolumeClaim" not in {each["kind"] for each in objects}


@pytest.mark.parametrize(
    ("component", "name", "mode"),
    [("host-path", "completion-models", "ReadOnlyMany"), ("node-cache", "completion-cache", "ReadWriteMany")],
)
def test_a_folder_of_each_node_is_a_volume_that_only_its_claim_takes(component: str, name: str, mode: str) -> None:
    objects = rendered(component)
    held, claim = (one(objects, kind, name) for kind in ("PersistentVolume", "PersistentVolumeClaim"))
    assert held["spec"]["claimRef"] == {"namespace": claim["metadata"]["namespace"], "name": name}
    assert claim["spec"]["volumeName"] == name
    for each in (held, claim):
        assert each["spec"]["storageClassName"] == "", "no driver may make another volume"
        assert each["spec"]["accessModes"] == [mode]
    assert held["spec"]["hostPath"]["type"] == "Directory", "a node without the folder is told in the pod's events"
    volumes = {"host-path": "models", "node-cache": "cache"}
    assert volume(component, volumes[component])["persistentVolumeClaim"]["claimName"] == name
    assert volume(component, volumes[component]).keys() == {"persistentVolumeClaim"}


def test_a_revision_in_a_nodes_folder_is_named_in_the_pod() -> None:
    assert mount("host-path", "models")["subPath"], "a new revision is a rollout"


def test_streamed_weights_have_an_address_and_credentials() -> None:
    config = server_config(list(rendered("object-storage")))
    assert config.engine.vllm["load_format"] == "runai_streamer"
    assert config.engine.vllm["model_weights"].startswith("s3://")
    assert volume("object-storage", "models").keys() == {"image"}
    folder = mount("object-storage", "object-storage")["mountPath"]
    environment = {each["name"]: each["value"] for each in pod("object-storage")["containers"][0]["env"]}
    assert environment["AWS_SHARED_CREDENTIALS_FILE"].startswith(f"{folder}/")
    policy = one(rendered("object-storage"), "NetworkPolicy", "completion-server-to-object-storage")["spec"]
    assert [each["port"] for rule in policy["egress"] for each in rule["ports"]] == [443]


@pytest.mark.parametrize(("component", "num_gpus"), [("tensor-parallel", 2), ("tensor-parallel-4", 4)])
def test_a_server_of_several_gpus_has_them_in_one_pod_with_shared_memory(component: str, num_gpus: int) -> None:
    alone, together = (pod(each)["containers"][0]["resources"] for each in ("regions/us-east", component))
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
def test_the_memory_of_a_models_settings_is_as_calculated(name: str) -> None:
    said = (DEPLOY / "components" / "models" / name / "kustomization.yaml").read_text(encoding="utf-8")
    said = " ".join(line.removeprefix("#").strip() for line in said.splitlines() if line.startswith("#"))
    assert "By calculation, not run on a GPU." in said
    of_memory, of_sum, of_sessions = (pattern.search(said) for pattern in (_MEMORY, _SUM, _SESSIONS))
    assert of_memory is not None
    assert of_sum is not None
    assert of_sessions is not None
    total, used, weights, steps = of_memory.groups()
    left = round(number(total) * number(used) / 100 - sum(map(float, weights.split("+"))) - number(steps), 1)
    per_token, gigabytes, tokens = map(number, of_sum.groups())
    assert gigabytes == pytest.approx(left, abs=0.11)
    shapes = [tuple(map(int, each)) for each in _KV.findall(said)]
    # Keys and values: twice.
    assert per_token == sum(2 * layers * heads * size * width for layers, heads, size, width in shapes)
    assert tokens == int(gigabytes * 1e9 / per_token)
    assert number(of_sessions[1]) == tokens // number(of_sessions[2])

    config = server_config(list(rendered(f"models/{name}")))
    longest = config.prompt.max_prompt_tokens + config.limits.max_tokens
    assert config.engine.max_model_len is not None
    assert config.engine.max_model_len >= longest + config.engine.num_speculative_tokens
    assert config.engine.max_num_seqs * 1500 <= tokens, "as many generations as a step may have fit into the memory"
    assert config.scheduling.max_slots <= config.engine.max_num_seqs
    assert config.engine.draft_model == (NGRAM if len(shapes) == 1 else str(DRAFT))
