"""The memory of an engine on a GPU is what the driver says."""

from pathlib import Path

import pytest

from target_model.core.errors import EvaluationError
from target_model.evaluation.memory import gpu_memory_bytes


def put_driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_it_is_the_sum_over_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_driver(tmp_path, '[ "$1" = --query-gpu=memory.used ] && printf "1024\\n512\\n"', monkeypatch)
    assert gpu_memory_bytes() == 1536 * 2**20


@pytest.mark.parametrize("script", ["exit 9", "echo '[N/A]'"])
def test_a_driver_without_an_answer_is_an_error(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_driver(tmp_path, script, monkeypatch)
    with pytest.raises(EvaluationError, match="nvidia-smi does not tell the GPU's memory"):
        gpu_memory_bytes()
