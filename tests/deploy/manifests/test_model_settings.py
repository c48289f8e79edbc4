"""Where a region's models come from, the settings of models that anyone can get, and servers of several GPUs."""

import pytest

from completion_server.engine.interface import NGRAM
from tests.deploy.manifests.targets import MODEL_SETTINGS, REGIONS, rendered, server_config
from tests.support.kustomize import Object, one
from tests.support.models import DRAFT


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
        assert each["spec"]["storageClassName"] == "", "no driver may make another volume"
        assert each["spec"]["accessModes"] == [mode]
    assert held["spec"]["hostPath"]["type"] == "Directory", "a node without the folder is told in the pod's events"
    source = volume(component, of_pod)
    assert (source.keys(), source["persistentVolumeClaim"]["claimName"]) == ({"persistentVolumeClaim"}, name)
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
