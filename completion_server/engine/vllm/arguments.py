"""Translates an engine's settings to vLLM's arguments, and finds reasons to lock the number of speculative tokens.

Imports vLLM, and starts nothing.
"""

import dataclasses
import difflib
import importlib
import logging
import os
import shutil
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import NGRAM, SpeculationLookup, constant_lookup, trial_ks
from completion_server.engine.settings import CPU_BLOCK_SIZE, EngineSettings

logger = logging.getLogger(__name__)

_OWN_KEYS = (
    "model", "revision", "max_model_len", "max_num_seqs", "tensor_parallel_size", "enforce_eager",
)  # fmt: skip
"""vLLM's arguments that are keys of `[engine]`, under the same name."""

_WORKER_EXTENSION = "completion_server.engine.vllm.drafts.worker.WorkerExtension"
"""Makes K = 0 cost what an engine without a draft model costs."""

_NGRAM_TOKENS = 2, 4
"""The shortest and the longest run of tokens that is looked up in the prompt."""

_SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
"""The key that tells vLLM that K may vary."""

_MAX_STEP_TOKENS = 2048
"""Tokens in a step. All generations in a step, and all requests that arrive meanwhile, wait for its end."""

_LONG_PREFILL_TOKENS = 1024
"""Tokens of one prompt in a step that other requests share: half of the step, so that short prompts fit beside it."""

_DECODE_SHARE = 2
"""A step has space for this many times the tokens that all generations decode in it."""


_STREAMED = "runai_streamer"
_STREAMER = "runai-model-streamer"
_STREAMER_PARTS = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""Names of the package's parts, by the addresses that they are for."""


def engine_args(settings: EngineSettings, *, traces_endpoint: str = "") -> dict[str, Any]:
    """Return the settings as keyword arguments of vLLM's AsyncEngineArgs.

    With `traces_endpoint` vLLM makes spans of its own.

    Raises:
        ConfigError: `[engine.vllm]` has a key that vLLM does not know, one that belongs to `[engine]`, or weights that
            can't be streamed; or this machine can't compile and the settings ask for it.

    """
    args: dict[str, Any] = {key: getattr(settings, key) for key in _OWN_KEYS} | {
        "revision": _hub_revision(settings.model, settings.revision),
        "enforce_eager": _enforces_eager(settings),
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "use_tqdm_on_load": False,
    }
    args |= {"block_size": CPU_BLOCK_SIZE} if current_platform.is_cpu() else gpu_batch_args(settings)
    if settings.draft_model and settings.num_speculative_tokens:
        args |= _speculation_args(settings)
    if traces_endpoint:
        args["otlp_traces_endpoint"] = traces_endpoint
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for key in settings.vllm:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"engine.vllm.{key}: vLLM has no such engine argument{hint}"
            raise ConfigError(msg)
        if key in _OWN_KEYS:
            msg = f"engine.vllm.{key}: set engine.{key} instead"
            raise ConfigError(msg)
    check_streaming(settings.vllm)
    return args | settings.vllm


def check_streaming(vllm: Mapping[str, Any]) -> None:
    """Check that `[engine.vllm]` streams the weights that it says are elsewhere, and that the packages are there.

    Raises:
        ConfigError: another loader would ignore `model_weights`, it is no address, or a package is missing.

    """
    weights, load_format = str(vllm.get("model_weights") or ""), str(vllm.get("load_format") or "auto")
    is_streamed = load_format.startswith(_STREAMED)
    scheme, separator, _path = weights.partition("://")
    if weights and not (separator and scheme in _STREAMER_PARTS):
        expected = " or ".join(f"{each}://" for each in _STREAMER_PARTS)
        raise ConfigError(f"engine.vllm.model_weights: must begin with {expected}, got {weights}")
    if weights and not is_streamed:
        raise ConfigError(f'engine.vllm.load_format: must be "{_STREAMED}" with model_weights, got "{load_format}"')
    needed = [_STREAMER] if is_streamed else []
    needed += [f"{_STREAMER}-{_STREAMER_PARTS[scheme]}"] if weights else []
    if missing := [each for each in needed if find_spec(each.replace("-", "_")) is None]:
        raise ConfigError(f'engine.vllm.load_format: "{load_format}" needs {" and ".join(missing)}, not installed')


def _hub_revision(model: str, revision: str | None) -> str | None:
    """Return the revision that vLLM gets: none of a folder, whose name for compiled code it would change."""
    return None if Path(model).is_dir() else revision


def gpu_batch_args(settings: EngineSettings) -> dict[str, Any]:
    """Return the engine arguments for the steps of a GPU, chosen for completions.

    Chosen by reasoning, not by measurement (docs/configuration.md). They are defaults: `[engine.vllm]` has precedence.
    """
    args: dict[str, Any] = {"performance_mode": "interactivity"}
    if settings.vllm.get("enable_chunked_prefill", True) is False:
        return args  # a step must hold the longest prompt then, which is for vLLM to know
    decoding = settings.max_num_seqs * (1 + settings.max_num_speculative_tokens)
    args["max_num_batched_tokens"] = max(_MAX_STEP_TOKENS, _DECODE_SHARE * decoding)
    if settings.max_model_len is None or settings.max_model_len >= _LONG_PREFILL_TOKENS:
        args["long_prefill_token_threshold"] = _LONG_PREFILL_TOKENS
    return args


def _enforces_eager(settings: EngineSettings) -> bool:
    """Return whether to skip compilation: compiled code is faster, but not every machine can compile for its CPU."""
    is_compiled = not settings.enforce_eager
    reason = cannot_compile_reason() if is_compiled and current_platform.is_cpu() else ""
    if reason and settings.enforce_eager is False:
        msg = f"engine.enforce_eager: must be true or unset on this machine, got false; {reason}"
        raise ConfigError(msg)
    if reason:
        _warn_once(f"the model runs uncompiled, which is slower; {reason}")
    return bool(reason) or not is_compiled


def cannot_compile_reason() -> str:
    """Return why this machine can't compile a model for a CPU, and what to do about it; "" if it can.

    torch writes C++ that includes Python.h, and vLLM keeps all of it in its cache folder.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler {compiler!r}: install g++, or name another one with CXX"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        return f"Python's headers are not installed ({header}): install python3-dev"
    folder = Path(envs.VLLM_CACHE_ROOT)
    if not os.access(next(each for each in (folder, *folder.parents) if each.exists()), os.W_OK):
        return f"vLLM's cache folder {folder} can't be written: name another one with VLLM_CACHE_ROOT"
    return ""


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _speculation_args(settings: EngineSettings) -> dict[str, Any]:
    speculative: dict[str, Any] = {"num_speculative_tokens": settings.num_speculative_tokens}
    if settings.draft_model == NGRAM:
        shortest, longest = _NGRAM_TOKENS
        speculative |= {"method": "ngram", "prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    else:
        speculative |= {"method": "draft_model", "model": settings.draft_model}
        speculative["revision"] = _hub_revision(settings.draft_model, settings.draft_revision)
    args = {"per_request_spec_decode_metrics": "summary", "speculative_config": speculative}
    if not settings_locked_reason(settings):
        args["worker_extension_cls"] = _WORKER_EXTENSION
        if not settings.full_cuda_graphs or settings.draft_model == NGRAM:
            speculative[_SCHEDULE_KEY] = _schedule(settings)
    return args


def _schedule(settings: EngineSettings) -> list[list[int]]:
    """Return the rows [first, last, K] that tell vLLM which K may come; the server's scheduler replaces them at start.

    vLLM's older runner has no full CUDA graphs with any schedule. The newer one, which n-gram drafts have on a GPU,
    captures them for each K that has a row: those that a trial at start measures, and 0.
    """
    largest, num_seqs = settings.num_speculative_tokens, settings.max_num_seqs
    is_newer_runner = settings.draft_model == NGRAM and not current_platform.is_cpu()
    fewer = sorted({*trial_ks(largest), 0} - {largest}, reverse=True)[: num_seqs - 1] if is_newer_runner else []
    others = range(num_seqs - len(fewer) + 1, num_seqs + 1)
    return [[1, num_seqs - len(fewer), largest], *([n, n, k] for n, k in zip(others, fewer, strict=True))]


def settings_locked_reason(settings: EngineSettings) -> str:
    """Return why these settings lock K; "" if they don't."""
    if int(settings.vllm.get("data_parallel_size") or 1) > 1:
        return "vLLM keeps K constant under data parallelism"
    if settings.vllm.get("scheduler_cls"):
        return "engine.vllm.scheduler_cls names another scheduler"
    return ""


def locked_reason(settings: EngineSettings, config: VllmConfig) -> str:
    """Return why K can't be changed on an engine of this configuration; "" if it can."""
    speculative = config.speculative_config
    if speculative is None:
        return "the engine was started without a draft model"
    is_ours_alone = settings.full_cuda_graphs and speculative.method == "draft_model"
    if getattr(speculative, _SCHEDULE_KEY, None) is None and not is_ours_alone:
        return settings_locked_reason(settings) or f"engine.vllm.speculative_config has no {_SCHEDULE_KEY}"
    return settings_locked_reason(settings)


def check_draft_length(config: VllmConfig) -> None:
    """Refuse a draft model that holds fewer tokens than the target: vLLM stops all drafts while one sequence is longer.

    Raises:
        ConfigError: it does.

    """
    draft = config.speculative_config.draft_model_config if config.speculative_config is not None else None
    if draft is not None and draft.max_model_len < config.model_config.max_model_len:
        limit, given = draft.max_model_len, config.model_config.max_model_len
        msg = (
            f"engine.max_model_len: the draft model holds {limit} tokens, got {given}; while one sequence is longer, no"
            f" request has drafts. Set engine.max_model_len={limit}, or take another draft model"
        )
        raise ConfigError(msg)


def schedulers_locked_reason(module: str) -> str:
    """Return why the module of schedulers can't be used with this vLLM; "" if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - vLLM may have changed their base classes in any way
        return f"this vLLM has other schedulers: {error}"
    return ""


def lookup_at_start(settings: EngineSettings, config: VllmConfig, locked_reason: str) -> SpeculationLookup:
    """Return the K by number of sequences that the engine starts with: a schedule of the operator's, or the largest K.

    If K is locked, vLLM follows the schedule of its configuration, whoever made it.
    """
    max_num_seqs = config.scheduler_config.max_num_seqs
    speculative = config.speculative_config
    if speculative is None:
        return constant_lookup(0, max_num_seqs)
    limit = speculative.num_speculative_tokens
    lookup = list(constant_lookup(limit, max_num_seqs))
    is_followed = bool(locked_reason or settings.vllm.get("speculative_config"))
    for first, _last, k in sorted(getattr(speculative, _SCHEDULE_KEY, None) or ()) if is_followed else ():
        lookup[first:] = [min(k, limit)] * len(lookup[first:])  # as in vLLM, a row also holds for a gap after it
    return tuple(lookup)
