"""vLLM in this process, without a server: for programs that measure a model or learn from its output.

vLLM is imported late: the import takes seconds, and changes the process's signal handling and environment.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from completion_server.engine.vllm.environment import choose_model_runner, keep_on_loopback, set_defaults

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONWARNINGS": "ignore::FutureWarning",
}
"""Environment of the engine's processes beside that of every engine; a variable that is set already stays."""


class OfflineEngineError(Exception):
    """vLLM does not start, dies, or is asked for with settings that are not free."""


def refuse_options(options: Mapping[str, Any], *fixed: str) -> None:
    """Check that the chosen `options` have none of the `fixed` settings.

    Raises:
        OfflineEngineError: names the settings that are not free.

    """
    taken = [name for name in options if name in fixed]
    if taken:
        raise OfflineEngineError(f"{', '.join(taken)}: no setting to choose here, the figures rest on it")


@contextmanager
def offline_engine(
    model: Path,
    fixed: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    speculation_graphs: Literal["full", "piecewise"] | None = None,
) -> Iterator[Any]:
    """Start vLLM on a model folder, yield its `LLM`, and stop its processes at the end.

    `fixed` are the caller's settings of vLLM; `options` are further ones that a user chose, such as
    `tensor_parallel_size`. `speculation_graphs` runs the model alone as it runs in speculation: on the runner for draft
    models, and with the CUDA graphs named. A draft model has piecewise ones, a target full ones while K is constant.

    Raises:
        OfflineEngineError: vLLM does not start, or dies later, or `options` has a fixed setting.

    """
    fixed = {"model": str(model), "use_tqdm_on_load": False, **fixed}
    options = options or {}
    refuse_options(options, *fixed)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    set_defaults()
    keep_on_loopback({**fixed, **options})
    choose_model_runner({**fixed, **options}.get("speculative_config"), is_older=speculation_graphs is not None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The import uses deprecated parts of torch.
        from vllm import LLM
        from vllm.platforms import current_platform
        from vllm.v1.engine.exceptions import EngineDeadError

    # An engine that evaluates a model runs for minutes, which a CPU would need to compile it.
    chosen: dict[str, Any] = {"enforce_eager": current_platform.is_cpu()}
    if speculation_graphs == "piecewise" and not current_platform.is_cpu():
        chosen["compilation_config"] = {"cudagraph_mode": "PIECEWISE"}
    try:
        llm = LLM(**fixed, **{**chosen, **options})
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise OfflineEngineError(f"vLLM does not start on {model}: {error}") from error
    try:
        yield llm
    except EngineDeadError as error:
        raise OfflineEngineError(f"vLLM died while it served {model}; its own words are above") from error
    finally:
        llm.llm_engine.engine_core.shutdown()
