"""What a benchmark starts its peers with."""

from typing import Any

import pytest

from loadtest.bench.peers.bare_engine import engine_env, peer_args
from loadtest.bench.peers.vllm_serve import serve_flags

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
SCHEDULED = {
    "method": "draft_model",
    "model": "d",
    "num_speculative_tokens": 4,
    "num_speculative_tokens_per_batch_size": [[1, 64, 4]],
}


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RUNNER, "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_USE_FLASHINFER_SAMPLER"):
        monkeypatch.delenv(name, raising=False)


def environment_of(**engine_args: Any) -> dict[str, str]:
    return engine_env({"engine": {}, "engine_args": {"model": "m", **engine_args}})


def test_a_peer_is_spawned_on_the_runner_for_its_drafts() -> None:
    assert environment_of(speculative_config=SCHEDULED)[RUNNER] == "0"
    plain = environment_of()
    assert RUNNER not in plain, "without a draft model the newer runner, which is vLLM's own choice"
    assert plain["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert plain["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_variables_of_the_caller_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNNER, "1")
    assert RUNNER not in environment_of(speculative_config=SCHEDULED), "a child inherits it"


def test_a_peer_has_neither_a_schedule_of_k_nor_this_projects_classes() -> None:
    ours = {"scheduler_cls": "ours", "worker_extension_cls": "ours"}
    given: dict[str, Any] = {"model": "m", **ours, "speculative_config": SCHEDULED, "enforce_eager": False}
    args = peer_args(given)
    assert args["speculative_config"] == {"method": "draft_model", "model": "d", "num_speculative_tokens": 4}
    assert not ours.keys() & args.keys()
    assert "num_speculative_tokens_per_batch_size" in given["speculative_config"], "the given ones stay"
    assert serve_flags(args) == [
        "--speculative-config",
        '{"method": "draft_model", "model": "d", "num_speculative_tokens": 4}',
        "--no-enforce-eager",
    ]
