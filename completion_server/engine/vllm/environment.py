"""The environment variables with which vLLM starts an engine's processes. Imports nothing of vLLM.

A variable that is set already stays: an operator's own choice always has precedence.

- vLLM forks its engine core on CUDA. A forked core believes that its plugins are loaded, runs the parent's signal
  handlers (SIGTERM to the core would drain the server), and may keep the GPU after the server's death. A spawned one
  does none of this.
- FlashInfer's sampler needs nvcc and ninja, which compile it at the first start. It is for top-k and top-p, which no
  request of the server has.
- vLLM's newer model runner (V2) runs a draft model without CUDA graphs and always drafts the largest K; the older one
  (V1) does neither. Without a draft model the newer one is faster.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

DEFAULTS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""For every engine."""

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_OLDER = "0"

_DRAFT_MODEL = "draft_model"
_OTHER_METHODS = ("eagle-", "eagle3", "dflash", "dspark", "ngram")
"""vLLM detects these in the name of a model without a method."""

_chosen_here: set[str] = set()
"""Variables that this process has set for one engine and may change for its next one."""


def engine_environment(speculative_config: Mapping[str, Any] | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an engine needs beside those `given`.

    `speculative_config` is the engine argument of that name; without a draft model vLLM itself chooses the runner.
    """
    wanted = DEFAULTS | ({RUNNER: _OLDER} if has_draft_model(speculative_config) else {})
    return {name: value for name, value in wanted.items() if name not in given}


def has_draft_model(speculative_config: Mapping[str, Any] | None) -> bool:
    """Return whether the drafts are a draft model's, and there are any."""
    config = speculative_config or {}
    if not config.get("num_speculative_tokens"):
        return False
    method, model = config.get("method"), str(config.get("model") or "").lower()
    if method is not None:
        return bool(method == _DRAFT_MODEL)
    return bool(model) and not any(name in model for name in _OTHER_METHODS)


def set_defaults() -> None:
    """Set the variables for every engine in this process's environment; call it before vLLM is imported."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def choose_model_runner(speculative_config: Mapping[str, Any] | None, *, is_older: bool = False) -> None:
    """Choose the model runner of the next engine that this process starts; call it before vLLM's configuration.

    The variable stays while the engine runs, because vLLM reads it at requests, too. `is_older` takes the older runner
    without a draft model, as for n-gram drafts with a K that may change.
    """
    if RUNNER in _chosen_here and os.environ.get(RUNNER) == _OLDER:
        del os.environ[RUNNER]
    _chosen_here.discard(RUNNER)
    if (is_older or has_draft_model(speculative_config)) and RUNNER not in os.environ:
        os.environ[RUNNER] = _OLDER
        _chosen_here.add(RUNNER)
        logger.debug("%s=%s", RUNNER, _OLDER)
