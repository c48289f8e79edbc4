"""Every shipped configuration against the locked CUDA versions, on a machine without a GPU: see `pretended_h200`."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.package.test_environment import locked_versions
from tests.support.models import ROOT

pytestmark = [pytest.mark.serial, pytest.mark.full, pytest.mark.timeout(1200)]

ENVIRONMENT = ROOT / ".venv-cuda-check"

OLDER = ("older", "PIECEWISE")
"""A draft model whose K is live: vLLM captures no full graphs for it."""
NEWER = ("newer", "FULL_AND_PIECEWISE")

EXPECTED = {
    "deploy/local": NEWER,
    "deploy/local, draft model": OLDER,
    "deploy/local, no drafts": NEWER,
    "deploy/base": OLDER,
    "README": OLDER,
    "bench-gpu sessions": OLDER,
    "bench-gpu functional, no draft": NEWER,
    "bench-gpu functional, n-gram": NEWER,
    "bench-gpu functional, no draft, older runner": ("older", "FULL_AND_PIECEWISE"),
    "bench-gpu functional, full graphs": ("older", "FULL_AND_PIECEWISE"),
    "bench-gpu functional, schedule": OLDER,
}
"""Model runner and CUDA graphs of each configuration."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM makes of the configurations."""
    if not (ENVIRONMENT / "installed").exists():
        reason = f"there is no {ENVIRONMENT.name}, the environment of the locked CUDA versions: make test-full"
        pytest.fail(reason) if "CI" in os.environ else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("h200")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "COMPLETION_"))}
    environment |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto"))), "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_CACHE_ROOT": str(folder), "VLLM_NO_USAGE_STATS": "1"}
    command = [ENVIRONMENT / "bin" / "python", "-m", "tests.support.pretended_h200", folder]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_the_versions_are_the_locked_ones(found: dict[str, Any]) -> None:
    locked = locked_versions("cuda.txt")
    assert found["versions"] == {name: locked[name] for name in ("vllm", "torch")}


def test_the_patches_fit_and_groups_of_one_work(found: dict[str, Any]) -> None:
    assert found["misfits"] == []
    assert found["gloo"] == [1, 1]


def test_each_configuration_has_its_runner_its_graphs_and_asynchronous_steps(found: dict[str, Any]) -> None:
    configurations = found["configurations"]
    assert {name: (each["runner"], each["graphs"]) for name, each in configurations.items()} == EXPECTED
    assert all(each["is_async"] for each in configurations.values())


def test_k_is_live_wherever_a_server_drafts(found: dict[str, Any]) -> None:
    servers = {name: each for name, each in found["configurations"].items() if each["scheduler"]}
    assert {each["scheduler"] for each in servers.values()} == {"LookupAsyncScheduler"}
    assert {each["locked_reason"] for each in servers.values()} == {""}
    assert {"deploy/local", "deploy/local, draft model", "deploy/base", "README"} <= servers.keys()
    assert [row[2] for row in servers["deploy/local"]["k_by_batch_size"]] == [4, 2, 1, 0], "the Ks with full graphs"


def test_the_steps_and_the_target_are_those_of_a_gpu(found: dict[str, Any]) -> None:
    configurations = found["configurations"]
    assert configurations["deploy/base"]["step_tokens"] == 2048
    assert configurations["deploy/base"]["quantization"] == "compressed-tensors"
