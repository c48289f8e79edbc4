"""The sizes of a GPU's steps."""

from typing import Any

import pytest

from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm.gpu_batches import gpu_batch_args

SIZES = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 1024}
GRAPHS = {"performance_mode": "interactivity"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, SIZES),
        ({"max_model_len": 1024}, SIZES),
        ({"max_model_len": 512}, {"max_num_batched_tokens": 2048}),
        (
            {"draft_model": "d", "num_speculative_tokens": 7, "max_num_seqs": 256},
            SIZES | {"max_num_batched_tokens": 4096},
        ),
        ({"num_speculative_tokens": 7, "max_num_seqs": 256}, SIZES),
        ({"vllm": {"enable_chunked_prefill": False}}, {}),
    ],
    ids=["usual", "long", "short", "many drafts", "no draft model", "whole prompts"],
)
def test_a_step_is_short_and_holds_all_drafts(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    assert gpu_batch_args(EngineSettings(model="m", **settings)) == GRAPHS | expected
