"""vLLM in this process, without a server: for programs that measure a model or learn from its output.

vLLM is imported late: the import takes seconds, and changes the process's signal handling and environment.
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from completion_server.engine.vllm.environment import (
    choose_model_runner,
    keep_on_loopback,
    set_defaults,
    use_all_cores,
)

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
    use_all_cores(str(model))
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


_COLD_BYTES = 64 << 20
"""Copies of a matrix take turns, more than a core's caches hold, as the layers of a model do."""
_NUM_TURNS = 4
"""The best turn of each matrix counts: other work on the machine can only add time."""


def linear_seconds(matrices: Sequence[tuple[int, int]], num_tokens: int) -> tuple[float, float] | None:
    """Return the seconds in which this CPU multiplies `num_tokens` by matrices of (out, in), in bfloat16 and in INT8.

    It uses the kernels that vLLM chooses for this CPU. None where vLLM computes on a GPU.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    set_defaults()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel
        from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import Int8ScaledMMLinearLayerConfig
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
        from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return None
    scheme = Int8ScaledMMLinearLayerConfig(is_static_input_scheme=False, is_channelwise=True, input_symmetric=True)
    names = ("weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj")

    def multiplied(num_out: int, num_in: int, dtype: torch.dtype) -> Callable[[], object]:
        inputs = torch.randn(num_tokens, num_in).bfloat16()
        layer: Any = torch.nn.Module()
        weight = torch.randint(-127, 128, (num_out, num_in), dtype=torch.int8).to(dtype)
        layer.register_parameter("weight", torch.nn.Parameter(weight, requires_grad=False))
        if dtype == torch.bfloat16:
            dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
            return lambda: layer.cpu_linear(inputs, layer.weight, None)
        scale = torch.nn.Parameter(torch.ones(num_out, 1, dtype=torch.float32), requires_grad=False)
        layer.register_parameter("weight_scale", scale)
        layer.input_scale = layer.input_zero_point = layer.azp_adj = layer.bias = None
        layer.logical_widths = [num_out]
        kernel = CPUInt8ScaledMMLinearKernel(scheme, names)
        kernel.process_weights_after_loading(layer)
        return lambda: kernel.apply_weights(layer, inputs)

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        plain_s = rounded_s = 0.0
        for matrix in matrices:
            num_copies = max(1, _COLD_BYTES // (2 * math.prod(matrix)))
            pairs = [(multiplied(*matrix, torch.bfloat16), multiplied(*matrix, torch.int8)) for _ in range(num_copies)]
            # In turns, so that other work on the machine meets both.
            turns = [(_seconds_of(plain), _seconds_of(rounded)) for _ in range(_NUM_TURNS) for plain, rounded in pairs]
            plain_s += min(seconds for seconds, _ in turns)
            rounded_s += min(seconds for _, seconds in turns)
        return plain_s, rounded_s
    finally:
        torch.set_default_dtype(default)


def _seconds_of(work: Callable[[], object]) -> float:
    begun_at = time.perf_counter()
    work()
    return time.perf_counter() - begun_at
