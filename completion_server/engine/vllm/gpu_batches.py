"""The sizes of a GPU's steps, chosen for completions. Imports nothing of vLLM.

Chosen by reasoning, not by measurement (docs/configuration.md). They are defaults: `[engine.vllm]` has precedence.
"""

from typing import Any

from completion_server.engine.settings import EngineSettings

MAX_NUM_BATCHED_TOKENS = 2048
"""Tokens in a step. All generations in a step, and all requests that arrive meanwhile, wait for its end."""

LONG_PREFILL_TOKENS = 1024
"""Tokens of one prompt in a step that other requests share: half of the step, so that short prompts fit beside it."""

_DECODE_SHARE = 2
"""A step has space for this many times the tokens that all generations decode in it."""


def gpu_batch_args(settings: EngineSettings) -> dict[str, Any]:
    """Return the engine arguments for the steps of a GPU."""
    args: dict[str, Any] = {"performance_mode": "interactivity"}
    if settings.vllm.get("enable_chunked_prefill", True) is False:
        return args  # a step must hold the longest prompt then, which is for vLLM to know
    decoding = settings.max_num_seqs * (1 + settings.max_num_speculative_tokens)
    args["max_num_batched_tokens"] = max(MAX_NUM_BATCHED_TOKENS, _DECODE_SHARE * decoding)
    if settings.max_model_len is None or settings.max_model_len >= LONG_PREFILL_TOKENS:
        args["long_prefill_token_threshold"] = LONG_PREFILL_TOKENS
    return args
