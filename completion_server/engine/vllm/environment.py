"""The environment variables with which vLLM starts an engine's processes. Imports nothing of vLLM.

A variable that is set already stays: an operator's own choice always has precedence.

- vLLM forks its engine core on CUDA. A forked core believes that its plugins are loaded, runs the parent's signal
  handlers (SIGTERM to the core would drain the server), and may keep the GPU after the server's death. A spawned one
  does none of this.
- FlashInfer's sampler needs nvcc and ninja, which compile it at the first start. It is for top-k and top-p, which no
  request of the server has.
- On a networked host vLLM's processes listen on the address of the host's name, without authentication.
- vLLM's newer model runner (V2) runs a draft model without CUDA graphs and always drafts the largest K; the older one
  (V1) does neither. Without a draft model the newer one is faster. So it is with n-gram drafts: it looks them up on the
  GPU, beside asynchronous scheduling and full CUDA graphs, and verifies only the current K of them.
- On a CPU vLLM computes on all cores but one, which it reserves for its scheduler. Of two cores that is half, and a
  large model's steps take half as long again.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

logger = logging.getLogger(__name__)

DEFAULTS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""For every engine."""

_RESERVED_CORES = "VLLM_CPU_NUM_OF_RESERVED_CPU"
_FEW_CORES = 4
_LARGE_BYTES = 256 << 20
"""Weights of which a step takes so long that the front end's share of a core is small."""

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_OLDER = "0"

_DRAFT_MODEL = "draft_model"
_OTHER_METHODS = ("eagle-", "eagle3", "dflash", "dspark", "ngram")
"""vLLM detects these in the name of a model without a method."""

_OTHER_HOSTS_KEYS = (
    "nnodes", "node_rank", "master_addr", "data_parallel_address", "data_parallel_rank", "data_parallel_start_rank",
    "data_parallel_size_local", "data_parallel_backend", "data_parallel_hybrid_lb", "data_parallel_external_lb",
    "data_parallel_multi_port_external_lb", "kv_transfer_config", "kv_events_config", "ec_transfer_config",
)  # fmt: skip
"""vLLM's arguments for engines that span several hosts or exchange data with other hosts."""

_LOOPBACK = ("127.0.0.1", "::1")

_NO_SPANS = "OTEL_SDK_DISABLED"

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


def use_all_cores(model: str) -> None:
    """Let an engine on a CPU with few cores compute a large model on all of them; call it before vLLM is imported."""
    weights = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    if weights >= _LARGE_BYTES and len(os.sched_getaffinity(0)) < _FEW_CORES:
        os.environ.setdefault(_RESERVED_CORES, "0")


def keep_on_loopback(options: Mapping[str, Any]) -> None:
    """Make the processes of an engine on one host listen on its loopback interface only.

    `options` are vLLM's engine arguments. The operator's variables stay.
    """
    is_local = options.get("distributed_executor_backend") in {None, "uni", "mp"}
    if not is_local or any(key in options for key in _OTHER_HOSTS_KEYS):
        return
    names = {entry.address: name for name, entries in psutil.net_if_addrs().items() for entry in entries}
    address = next((address for address in _LOOPBACK if address in names), None)
    if address is not None:
        os.environ.setdefault("VLLM_HOST_IP", address)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[address])
        os.environ.setdefault("NCCL_SOCKET_IFNAME", names[address])


def choose_model_runner(speculative_config: Mapping[str, Any] | None, *, is_older: bool = False) -> None:
    """Choose the model runner of the next engine that this process starts; call it before vLLM's configuration.

    The variable stays while the engine runs, because vLLM reads it at requests, too. `is_older` takes the older runner
    without a draft model, to time a model as it runs in speculation.
    """
    if RUNNER in _chosen_here and os.environ.get(RUNNER) == _OLDER:
        del os.environ[RUNNER]
    _chosen_here.discard(RUNNER)
    if (is_older or has_draft_model(speculative_config)) and RUNNER not in os.environ:
        os.environ[RUNNER] = _OLDER
        _chosen_here.add(RUNNER)
        logger.debug("%s=%s", RUNNER, _OLDER)


@contextmanager
def without_spans() -> Iterator[None]:
    """Let the processes that start inside the `with` block make no spans.

    vLLM's own processes would make spans of their start, with exporters of their own, without encryption.
    """
    given = os.environ.get(_NO_SPANS)
    os.environ[_NO_SPANS] = "true"
    try:
        yield
    finally:
        if given is None:
            del os.environ[_NO_SPANS]
        else:
            os.environ[_NO_SPANS] = given
