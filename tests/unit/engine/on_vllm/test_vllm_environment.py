"""The environment variables that vLLM's processes start with, on any machine: which they are, and whose word holds."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import pytest

from completion_server.engine.vllm import process as vllm_process
from completion_server.engine.vllm.environment import (
    DEFAULTS,
    RUNNER,
    choose_model_runner,
    engine_environment,
    has_draft_model,
    without_spans,
)

DRAFTING = {"method": "draft_model", "model": "d", "num_speculative_tokens": 4}


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*DEFAULTS, RUNNER):
        monkeypatch.setenv(name, "")  # so that the test's own values go again
        monkeypatch.delenv(name)


def test_processes_are_spawned_and_no_sampler_is_compiled() -> None:
    wanted = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    assert engine_environment(None, {}) == wanted
    vllm_process.prepare("warning", 1)
    assert {name: os.environ[name] for name in wanted} == wanted


def test_variables_of_the_operator_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_USE_FLASHINFER_SAMPLER": "1", RUNNER: "1"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert engine_environment(DRAFTING, own) == {}
    vllm_process.prepare("warning", 1)
    choose_model_runner(DRAFTING)
    choose_model_runner(None)
    assert {name: os.environ[name] for name in own} == own


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


def test_engines_that_start_one_after_another_have_each_their_own_runner() -> None:
    seen = []
    for config in (DRAFTING, None, DRAFTING):
        choose_model_runner(config)
        seen.append(os.environ.get(RUNNER))
    assert seen == ["0", None, "0"]


def test_the_choice_of_the_runner_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "completion_server"):
        choose_model_runner(DRAFTING)
    assert [(each.getMessage(), each.levelname) for each in caplog.records] == [(f"{RUNNER}=0", "DEBUG")]


@pytest.mark.parametrize("given", [None, "false"])
def test_the_engines_processes_make_no_spans(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", given or "")
    if given is None:
        monkeypatch.delenv("OTEL_SDK_DISABLED")
    with without_spans():
        assert os.environ["OTEL_SDK_DISABLED"] == "true"
    assert os.environ.get("OTEL_SDK_DISABLED") == given
