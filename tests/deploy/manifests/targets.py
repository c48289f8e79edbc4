"""What deploy/ can make, rendered once each: its folders, and a region with further components."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from completion_server.config import Config, load_config
from tests.support.kustomize import DEPLOY, Object, containers, copy_with_components, one, render
from tests.support.models import DRAFT, TARGET

MODELS = {"target": TARGET, "draft": DRAFT}
EAST = "regions/us-east"
REGIONS = ("us-east", "us-west", "eu-west")
_OTHERS = ("global", "loadtest", "monitoring", "gitops/argocd", "gitops/flux")
FOLDERS = (*(f"regions/{region}" for region in REGIONS), *_OTHERS)
MODEL_SETTINGS = ("qwen2.5-coder-7b", "deepseek-coder-33b", "code-llama-13b")
COMBINATIONS = (
    ("cpu",),
    ("-canary",),
    ("-canary", "-keda"),
    ("no-spare-gpu",),
    ("-canary", "no-spare-gpu"),
    ("jwt",),
    ("crl",),
    ("otel",),
    ("-probe",),
    ("host-path",),
    ("object-storage",),
    ("node-cache",),
    ("tensor-parallel",),
    ("tensor-parallel-4",),
    *((f"models/{each}",) for each in MODEL_SETTINGS),
    ("redis",),
    ("redis-external",),
    ("otel", "host-path", "node-cache", "redis-external"),
    ("models/deepseek-coder-33b", "object-storage", "tensor-parallel"),
)
"""Components that an operator may append to a region's, and those whose lines ("-name") may be deleted."""
TARGETS = (*FOLDERS, *("+".join(each) for each in COMBINATIONS))


@cache
def rendered(target: str) -> tuple[Object, ...]:
    """Return the objects of a folder of deploy/, or of us-east with A and without B: "A+-B". Don't change them."""
    if target in FOLDERS:
        return tuple(render(DEPLOY / target))
    with TemporaryDirectory(prefix="deploy-") as folder:
        return tuple(render(copy_with_components("us-east", target.split("+"), Path(folder, "deploy"))))


def container_of(deployment: str, target: str = EAST) -> Object:
    """Return the first container of a Deployment."""
    found: Object = one(rendered(target), "Deployment", deployment)["spec"]["template"]["spec"]["containers"][0]
    return found


@cache
def loaded(path: str) -> Object:
    """Return the object of a file of deploy/ that is applied by itself. Don't change it."""
    found: Object = yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))
    return found


def server_config(objects: list[Object]) -> Config:
    """Load the configuration as the server's container would, with stand-ins for the models and secrets."""
    ((_, container, pod),) = (each for each in containers(objects) if each[1]["name"] == "server")
    assert container["args"][:2] == ["serve", "--config"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    with TemporaryDirectory(prefix="pod-") as root:
        environment = {each["name"]: each["value"] for each in container.get("env", ())}
        texts = {}
        for mount in container["volumeMounts"]:
            path = Path(root + mount["mountPath"])
            path.mkdir(parents=True)
            volume = volumes[mount["name"]]
            for item in volume.get("secret", {}).get("items", ()):
                (path / item["path"]).write_text("0123456789abcdef" * 4, encoding="utf-8")
            if "configMap" in volume:
                for name, text in one(objects, "ConfigMap", "completion-server")["data"].items():
                    texts[path / name] = text
        for model in ("target", "draft"):
            Path(root, "models", model).symlink_to(MODELS[model])
        for path, text in texts.items():
            path.write_text(_below(root, text), encoding="utf-8")
        environment = {name: _below(root, value, '"/') for name, value in environment.items()}
        return load_config(Path(root + container["args"][2]), environ=environment)


def _below(root: str, text: str, begin: str = '"/') -> str:
    """Move absolute paths in a text, or a text that is a path, below a folder."""
    return root + text if text.startswith("/") else text.replace(begin, f'"{root}/')
