"""What an engine's settings mean to vLLM: its arguments, and what they let become of the draft lengths.

Imports vLLM, and starts nothing.
"""

import contextlib
import dataclasses
import difflib
import importlib
import logging
import os
from typing import Any

from vllm.config import SpeculativeConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from completion_server.core.errors import ConfigError
from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm.schedule_table import MAX_DRAFT_TOKENS
from completion_server.speculation.schedule import Schedule, ScheduleError, parse_schedule

logger = logging.getLogger(__name__)

_OWN_KEYS = (
    "model", "revision", "dtype", "max_model_len", "max_num_seqs", "tensor_parallel_size", "trust_remote_code",
    "enforce_eager",
)  # fmt: skip
"""Arguments that `[engine]` has a key of the same name for."""

_V2_RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"

_SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
"""What tells vLLM that K may vary; a version without it runs with a fixed one."""


def engine_args(settings: EngineSettings) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's AsyncEngineArgs that the settings mean.

    Raises:
        ConfigError: `[engine.vllm]` has a key that vLLM does not know, or one that has a place in `[engine]`.

    """
    args: dict[str, Any] = {
        "model": settings.model,
        "revision": settings.revision,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "trust_remote_code": settings.trust_remote_code,
        "enforce_eager": current_platform.is_cpu() if settings.enforce_eager is None else settings.enforce_eager,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "use_tqdm_on_load": False,
    }
    if settings.draft_model and settings.num_speculative_tokens:
        args["per_request_spec_decode_metrics"] = "summary"
        args["speculative_config"] = {
            "method": "draft_model",
            "model": settings.draft_model,
            "num_speculative_tokens": settings.num_speculative_tokens,
        }
        if not fixed_by_settings(settings):
            # A schedule tells vLLM that K may vary; a GPU then does without full CUDA graphs (docs/speculation.md).
            row = [1, settings.max_num_seqs, settings.num_speculative_tokens]
            args["speculative_config"][_SCHEDULE_KEY] = [row]
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
    return args | settings.vllm


def fixed_by_settings(settings: EngineSettings) -> str:
    """Return why these settings keep K as it is at start; "" where they don't."""
    if _SCHEDULE_KEY not in {field.name for field in dataclasses.fields(SpeculativeConfig)}:
        return f"this vLLM has no {_SCHEDULE_KEY}"
    if int(settings.vllm.get("data_parallel_size") or 1) > 1:
        return "vLLM keeps the draft length fixed under data parallelism"
    if settings.vllm.get("scheduler_cls"):
        return "engine.vllm.scheduler_cls names a scheduler of another make"
    if settings.num_speculative_tokens > MAX_DRAFT_TOKENS:
        return f"engine.num_speculative_tokens is over {MAX_DRAFT_TOKENS}"
    return ""


def choose_model_runner(settings: EngineSettings) -> None:
    """Where K may vary on a GPU, let vLLM use the model runner that drafts K tokens; to be called before it is set up.

    Its newer one, the default, drafts up to the ceiling at each step, whatever K is, and runs a draft model without
    CUDA graphs (vLLM 0.32, by its code). Who sets VLLM_USE_V2_MODEL_RUNNER decides.
    """
    if settings.draft_model and not current_platform.is_cpu() and not fixed_by_settings(settings):
        os.environ.setdefault(_V2_RUNNER_ENV, "0")
        logger.info("draft lengths may change: %s=%s", _V2_RUNNER_ENV, os.environ[_V2_RUNNER_ENV])


def fixed_because(settings: EngineSettings, config: VllmConfig) -> str:
    """Return why K can't be changed on an engine of this configuration; "" where it can."""
    speculative = config.speculative_config
    if speculative is None:
        return "the engine was started without a draft model"
    if getattr(speculative, _SCHEDULE_KEY, None) is None:
        return fixed_by_settings(settings) or f"engine.vllm.speculative_config has no {_SCHEDULE_KEY}"
    return fixed_by_settings(settings)


def unfit_schedulers(module: str) -> str:
    """Return why the module of schedulers that follow a schedule can't be used with this vLLM; "" where it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - vLLM may have moved, renamed or remade what they are built on
        return f"this vLLM has other schedulers: {error}"
    return ""


def schedule_at_start(config: VllmConfig) -> Schedule:
    """Return the schedule that vLLM starts with."""
    speculative = config.speculative_config
    if speculative is None:
        return Schedule.fixed(0, config.scheduler_config.max_num_seqs)
    ceiling = speculative.num_speculative_tokens
    with contextlib.suppress(ScheduleError):  # vLLM takes some that have gaps
        return parse_schedule(getattr(speculative, _SCHEDULE_KEY, None) or (), ceiling)
    return Schedule.fixed(ceiling, config.scheduler_config.max_num_seqs)
