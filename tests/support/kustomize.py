"""Renders deploy/ with the real kustomize, which a laptop may lack."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.models import ROOT

Object = dict[str, Any]
"""A Kubernetes object, as YAML has it."""

TOOLS = ROOT / ".tools"
DEPLOY = ROOT / "deploy"
_OLDEST = (5, 4)
_TIMEOUT_S = 60


def find_kustomize() -> Path | None:
    """Return the binary of `make deploy-tools`, else the one on PATH."""
    installed = TOOLS / "kustomize" / "usr" / "bin" / "kustomize"
    if installed.exists():
        return installed
    on_path = shutil.which("kustomize")
    return Path(on_path) if on_path else None


def require_kustomize() -> Path:
    """Return the binary. Without a usable one a laptop skips the test; a build server fails."""
    found = find_kustomize()
    problem = "kustomize not found" if found is None else _fault_of(found)
    if found is not None and problem is None:
        return found
    report(f"{problem}; make deploy-tools installs it")
    raise AssertionError


def report(missing: str) -> None:
    """Skip the test because of what is missing, and fail it if CI is set."""
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def _fault_of(binary: Path) -> str | None:
    """Return what is wrong with a binary. Debian's does not know its version; `make deploy-tools` pins that one."""
    said = _run(binary, "version").stdout.strip()
    version = re.match(r"v(\d+)\.(\d+)", said)
    if version and (int(version[1]), int(version[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return f"{binary} is {said}, and deploy/ needs kustomize {oldest} or later"
    return None


def render(folder: Path) -> list[Object]:
    """Return the objects that a folder makes. An error of kustomize fails the test."""
    done = _run(require_kustomize(), "build", str(folder))
    assert done.returncode == 0, f"kustomize build {folder}:\n{done.stderr}"
    return list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


def copy_with_components(region: str, components: Sequence[str], folder: Path) -> Path:
    """Copy deploy/ to a new folder and append components to a region, as its operator would; return the region."""
    shutil.copytree(DEPLOY, folder)
    path = folder / "regions" / region
    with (path / "kustomization.yaml").open("a", encoding="utf-8") as file:
        file.writelines(f"  - ../../components/{component}\n" for component in components)
    return path


def _run(binary: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(binary), *arguments], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env={}
    )


def name_of(found: Object) -> str:
    """Return "Kind/name"."""
    return f"{found['kind']}/{found['metadata']['name']}"


def one(objects: Sequence[Object], kind: str, name: str) -> Object:
    """Return the object of a kind and name. The suffix of a generated ConfigMap does not count."""
    suffix = "(-[a-z0-9]{10})?" if kind == "ConfigMap" else ""
    found = [each for each in objects if each["kind"] == kind and re.fullmatch(name + suffix, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
    return found[0]


def pod_specs(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the pod specification of each workload with its "Kind/name". A Rollout may have none."""
    for each in objects:
        if each["kind"] in {"Deployment", "StatefulSet", "DaemonSet", "Job", "Rollout"} and "template" in each["spec"]:
            yield name_of(each), each["spec"]["template"]["spec"]


def containers(objects: Sequence[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Yield each container with its "Kind/name/container" and its pod's specification."""
    for owner, pod in pod_specs(objects):
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield f"{owner}/{container['name']}", container, pod
