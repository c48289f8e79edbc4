"""Renders deploy/ with the real kustomize, which a laptop may lack."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from tests.support.models import ROOT

Object = dict[str, Any]
"""A Kubernetes object, as YAML has it."""

TOOLS = ROOT / ".tools"
DEPLOY = ROOT / "deploy"
_OLDEST = (5, 4)
_TIMEOUT_S = 60


@cache
def require_kustomize() -> Path:
    """Return the binary of `make deploy-tools`, else the one on PATH; skip the test without a usable one (`report`)."""
    installed, on_path = TOOLS / "kustomize" / "usr" / "bin" / "kustomize", shutil.which("kustomize")
    if not installed.exists() and not on_path:
        report("kustomize not found; make deploy-tools installs it")
    found = installed if installed.exists() else Path(str(on_path))
    # Debian's does not know its version; `make deploy-tools` pins that one.
    version = re.match(r"v(\d+)\.(\d+)", _run(found, "version").stdout.strip())
    if version and (int(version[1]), int(version[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        report(f"{found} is {version[0]}, and deploy/ needs kustomize {oldest} or later; make deploy-tools installs it")
    return found


def report(missing: str) -> NoReturn:
    """Skip the test because of what is missing, and fail it if CI is set."""
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def require_programs(programs: Sequence[str], packages: str) -> None:
    """Skip the test on a machine without some programs of Debian's packages (`report`)."""
    if missing := [each for each in programs if shutil.which(each) is None]:
        report(f"{', '.join(missing)} not found; on Debian: apt-get install {packages}")


def render(folder: Path) -> list[Object]:
    """Return the objects that a folder makes. An error of kustomize fails the test."""
    done = _run(require_kustomize(), "build", str(folder))
    assert done.returncode == 0, f"kustomize build {folder}:\n{done.stderr}"
    return list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


def copy_with_components(region: str, components: Sequence[str], folder: Path) -> Path:
    """Copy deploy/ to a new folder and append components to a region, as its operator would; return the region.

    The line of a component "-name" is deleted.
    """
    shutil.copytree(DEPLOY, folder)
    path = folder / "regions" / region
    file = path / "kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    for component in components:
        line = f"- ../../components/{component.removeprefix('-')}\n"
        if component.startswith("-"):
            assert line in text, f"{region} has no {line}"
            text = text.replace(line, "")
        else:
            text += line
    file.write_text(text, encoding="utf-8")
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


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    """Return the objects of some kinds."""
    return [each for each in objects if each["kind"] in kinds]


def pod_specs(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the pod specification of each workload with its "Kind/name". A Rollout may have none."""
    for each in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job", "Rollout"):
        if "template" in each["spec"]:
            yield name_of(each), each["spec"]["template"]["spec"]


def containers(objects: Sequence[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Yield each container with its "Kind/name/container" and its pod's specification."""
    for owner, pod in pod_specs(objects):
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield f"{owner}/{container['name']}", container, pod
