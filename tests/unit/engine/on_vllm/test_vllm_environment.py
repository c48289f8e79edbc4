"""The environment and the logs of an engine's processes, with and without a server, on any machine."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from completion_server.core.errors import ConfigError
from completion_server.engine.vllm import process as vllm_process
from completion_server.engine.vllm.environment import (
    DEFAULTS,
    RUNNER,
    choose_model_runner,
    engine_environment,
    has_draft_model,
    keep_on_loopback,
    use_all_cores,
    without_spans,
)
from completion_server.engine.vllm.offline import ENVIRONMENT, offline_engine
from tests.support.models import ROOT

SPAWNED = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
DRAFTING = {"method": "draft_model", "model": "d", "num_speculative_tokens": 4}
RESERVED_CORES = "VLLM_CPU_NUM_OF_RESERVED_CPU"
LOOPBACK = ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*DEFAULTS, *ENVIRONMENT, *LOOPBACK, RUNNER, RESERVED_CORES, "VLLM_PLUGINS", "OTEL_SDK_DISABLED"):
        monkeypatch.setenv(name, "")  # so that the test's own values go again
        monkeypatch.delenv(name)


def test_variables_of_the_operator_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_USE_FLASHINFER_SAMPLER": "1", RUNNER: "1"}
    for name, value in (own | {"GLOO_SOCKET_IFNAME": "eth7"}).items():
        monkeypatch.setenv(name, value)
    assert engine_environment(DRAFTING, own) == {}
    vllm_process.prepare("warning", 1, "model")
    choose_model_runner(DRAFTING)
    choose_model_runner(None)
    keep_on_loopback({})
    assert {name: os.environ[name] for name in own} == own
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["VLLM_HOST_IP"]) == ("eth7", "127.0.0.1")


@pytest.mark.parametrize(
    ("mib", "num_cores", "given", "expected"),
    [(300, 2, None, "0"), (300, 4, None, None), (200, 2, None, None), (300, 2, "1", "1")],
)
def test_a_large_model_is_computed_on_all_of_few_cores(
    mib: int, num_cores: int, given: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(num_cores)))
    for number in range(2):
        with (tmp_path / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(mib << 19)
    if given is not None:
        monkeypatch.setenv(RESERVED_CORES, given)
    use_all_cores(str(tmp_path))
    assert os.environ.get(RESERVED_CORES) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (DRAFTING, True),
        ({"model": "org/code-0.5b", "num_speculative_tokens": 4}, True),
        (DRAFTING | {"num_speculative_tokens": 0}, False),
        (None, False),
        ({}, False),
        ({"method": "ngram", "num_speculative_tokens": 4}, False),
        ({"model": "[ngram]", "num_speculative_tokens": 4}, False),
        ({"method": "eagle3", "model": "d", "num_speculative_tokens": 4}, False),
        ({"model": "org/EAGLE3-8B", "num_speculative_tokens": 4}, False),
    ],
)
def test_the_older_runner_is_for_draft_models_alone(config: Mapping[str, Any] | None, expected: bool) -> None:
    assert has_draft_model(config) is expected
    assert (RUNNER in engine_environment(config, {})) is expected
    choose_model_runner(config)
    assert os.environ.get(RUNNER) == ("0" if expected else None)


@pytest.mark.parametrize("given", [None, "false"])
def test_the_engines_processes_make_no_spans(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    if given is not None:
        monkeypatch.setenv("OTEL_SDK_DISABLED", given)
    with without_spans():
        assert os.environ["OTEL_SDK_DISABLED"] == "true"
    assert os.environ.get("OTEL_SDK_DISABLED") == given


@pytest.mark.parametrize(
    ("options", "is_local"),
    [
        ({}, True),
        ({"distributed_executor_backend": "mp"}, True),
        ({"data_parallel_size": 2}, True),
        ({"nnodes": 2}, False),
        ({"distributed_executor_backend": "ray"}, False),
        ({"kv_transfer_config": {}}, False),
    ],
)
def test_only_an_engine_on_one_host_is_kept_on_loopback(options: dict[str, object], is_local: bool) -> None:
    keep_on_loopback(options)
    assert [name in os.environ for name in LOOPBACK] == [is_local] * 3


def test_plugins_that_vllm_would_not_load_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_process.check_plugins()
    monkeypatch.setenv("VLLM_PLUGINS", "lora,completion_server,completion_server_on_cpu")
    vllm_process.check_plugins()
    monkeypatch.setenv("VLLM_PLUGINS", "lora,completion_server")
    expected = r"VLLM_PLUGINS: must be unset or contain completion_server,completion_server_on_cpu, .* got 'lora,"
    with pytest.raises(ConfigError, match=expected):
        vllm_process.check_plugins()
    monkeypatch.delenv("VLLM_PLUGINS")
    monkeypatch.setattr(vllm_process, "entry_points", lambda group: ())
    with pytest.raises(ConfigError, match=r"vLLM finds no plugin completion_server, .* pip install --no-deps"):
        vllm_process.check_plugins()


@pytest.mark.parametrize(("of_server", "of_engine"), [(0, 5), (3, 8), (17, 19)])
def test_all_processes_of_the_engine_have_one_niceness(
    monkeypatch: pytest.MonkeyPatch, of_server: int, of_engine: int
) -> None:
    niceness = of_server

    def nice(increment: int) -> int:
        nonlocal niceness
        niceness = min(19, niceness + increment)
        return niceness

    monkeypatch.setattr(os, "nice", nice)
    monkeypatch.setenv(vllm_process.NICE_ENV, "")
    vllm_process.yield_to_server(5)
    vllm_process.lower_priority()  # the engine core
    assert niceness == of_engine
    vllm_process.lower_priority()  # its worker, which begins with the core's niceness
    assert niceness == of_engine


class FakeLLM:
    """Notes its settings, and the runner that its start would have chosen."""

    started: list[tuple[dict[str, Any], str | None]]

    def __init__(self, **settings: Any) -> None:
        FakeLLM.started.append((settings, os.environ.get(RUNNER)))
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None))


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Take vLLM's place, and return its platform, which is a GPU."""
    FakeLLM.started = []
    found = SimpleNamespace(is_cpu=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", SimpleNamespace(EngineDeadError=RuntimeError))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=found))
    return found


def start(
    fixed: dict[str, Any], options: dict[str, Any] | None = None, **how: Any
) -> tuple[dict[str, Any], str | None]:
    with offline_engine(Path("m"), fixed, options, **how):
        return FakeLLM.started[-1]


def test_a_model_alone_can_run_as_it_runs_in_speculation(platform: SimpleNamespace) -> None:
    settings, runner = start({}, speculation_graphs="piecewise")
    assert (settings["compilation_config"], runner) == ({"cudagraph_mode": "PIECEWISE"}, "0")
    settings, runner = start({}, speculation_graphs="full")
    assert ("compilation_config" in settings, runner) == (False, "0")
    own = {"compilation_config": {"cudagraph_mode": "NONE"}}
    assert start({}, own, speculation_graphs="piecewise")[0]["compilation_config"] == own["compilation_config"]
    assert start({})[1] is None
    platform.is_cpu = lambda: True
    assert "compilation_config" not in start({}, speculation_graphs="piecewise")[0], "no graphs on a CPU"


PROMPT_ID, DRAFT_ID = "471100", "471199"
MARK = "=== now as in an engine's process ==="
PROGRAM = f"""
import logging, sys
from completion_server.engine.vllm import process as vllm_process
vllm_process.prepare("warning", 1, "model")
from vllm.logging_utils.dump_input import dump_engine_exception
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

def fail():
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [
        NewRequestData("r1", [{PROMPT_ID}], [], SamplingParams(), None, ([0],), 0, None)
    ]
    output.scheduled_spec_decode_tokens = {{"r1": [{DRAFT_ID}]}}
    dump_engine_exception("the configuration", output, None)
    try:
        raise ValueError("bad token {PROMPT_ID}")
    except ValueError:
        logging.getLogger("vllm.v1.engine.core").exception("EngineCore encountered a fatal error.")

fail()
sys.stderr.write("{MARK}")
vllm_process.keep_client_text_out_of_logs()
fail()
"""


def test_the_logs_of_a_failed_step_contain_no_tokens() -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT)
    before, _, after = (done.stdout + done.stderr).partition(MARK)
    for token in (PROMPT_ID, DRAFT_ID):
        assert token in before, "vLLM logs something else now: see whether the filter is still needed, and still fits"
        assert token not in after
    assert "EngineCore encountered a fatal error." in after
    assert "ValueError" in after
