"""How an engine without a server is started, on any platform; vLLM's place is taken."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from completion_server.engine.vllm.environment import DEFAULTS, RUNNER
from completion_server.engine.vllm.offline import ENVIRONMENT, offline_engine

DRAFTING = {"speculative_config": {"method": "draft_model", "model": "d", "num_speculative_tokens": 4}}
LOOPBACK = ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
PIECEWISE = {"cudagraph_mode": "PIECEWISE"}


class FakeLLM:
    """Notes its settings, and the runner that its start would have chosen."""

    started: list[tuple[dict[str, Any], str | None]]

    def __init__(self, **settings: Any) -> None:
        FakeLLM.started.append((settings, os.environ.get(RUNNER)))
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None))


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*DEFAULTS, *ENVIRONMENT, *LOOPBACK, RUNNER):
        monkeypatch.setenv(name, "")  # so that the test's own values go again
        monkeypatch.delenv(name)
    FakeLLM.started = []
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM))
    errors = SimpleNamespace(EngineDeadError=RuntimeError)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", errors)
    on_platform(monkeypatch, is_cpu=False)


def on_platform(monkeypatch: pytest.MonkeyPatch, *, is_cpu: bool) -> None:
    platform = SimpleNamespace(is_cpu=lambda: is_cpu)
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))


def start(
    fixed: dict[str, Any], options: dict[str, Any] | None = None, **how: Any
) -> tuple[dict[str, Any], str | None]:
    with offline_engine(Path("m"), fixed, options, **how):
        return FakeLLM.started[-1]


def test_processes_are_spawned_and_no_sampler_is_compiled() -> None:
    start({})
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


@pytest.mark.parametrize(
    ("options", "address"),
    [({}, "127.0.0.1"), ({"tensor_parallel_size": 2}, "127.0.0.1"), ({"distributed_executor_backend": "ray"}, None)],
)
def test_an_engine_on_one_host_listens_on_loopback(options: dict[str, Any], address: str | None) -> None:
    start({}, options)
    assert os.environ.get("VLLM_HOST_IP") == address
    assert all((name in os.environ) is bool(address) for name in LOOPBACK)


def test_each_engine_has_the_runner_for_its_drafts() -> None:
    given: list[tuple[dict[str, Any], dict[str, Any] | None]] = [(DRAFTING, None), ({}, None), ({}, DRAFTING)]
    assert [start(fixed, options)[1] for fixed, options in given] == ["0", None, "0"]


def test_a_model_alone_can_run_as_it_runs_in_speculation(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, runner = start({}, speculation_graphs="piecewise")
    assert (settings["compilation_config"], runner) == (PIECEWISE, "0")
    settings, runner = start({}, speculation_graphs="full")
    assert ("compilation_config" in settings, runner) == (False, "0")
    own = {"compilation_config": {"cudagraph_mode": "NONE"}}
    assert start({}, own, speculation_graphs="piecewise")[0]["compilation_config"] == own["compilation_config"]
    assert start({})[1] is None
    on_platform(monkeypatch, is_cpu=True)
    assert "compilation_config" not in start({}, speculation_graphs="piecewise")[0], "no graphs on a CPU"
