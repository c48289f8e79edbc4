"""Whether a machine can compile models."""

import os
import sysconfig
from pathlib import Path

import pytest

from completion_server.engine.vllm.compiled import cannot_compile_reason


def test_a_machine_with_a_compiler_and_headers_can_compile() -> None:
    assert cannot_compile_reason() == ""


def test_without_a_compiler_the_reason_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cannot_compile_reason().startswith("there is no C++ compiler 'no-such-compiler': install g++")


def test_without_headers_the_reason_names_the_missing_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert cannot_compile_reason().startswith(f"Python's headers are not installed ({tmp_path / 'Python.h'})")


def test_a_cache_folder_must_be_writable_and_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "missing" / "too"))
    assert cannot_compile_reason() == ""
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path)
    assert f"vLLM's cache folder {tmp_path / 'missing' / 'too'} can't be written" in cannot_compile_reason()
