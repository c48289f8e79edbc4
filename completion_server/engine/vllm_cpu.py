"""A mend of vLLM on a CPU: without it, text sampled with speculation is drawn at a temperature read from stray memory.

vLLM 0.32 spreads each request's temperature, top-k and top-p over its drafted tokens (`expand_kernel`). Its fallback
for machines without Triton writes the result to a copy in int64 and drops it, so what the caller reads was never
written. vLLM calls `register` in each of its processes, as one of its general plugins, before it puts its fallbacks in
place; where Triton is, on GPUs, nothing calls them.
"""

from typing import Any

from torch import Tensor

FALLBACK = "_expand_kernel_impl"


def register() -> None:
    """Put `expand` in the place of vLLM's own, where this version has it."""
    try:
        from vllm.utils import cpu_triton_utils
    except ImportError:
        return
    if hasattr(cpu_triton_utils, FALLBACK):
        setattr(cpu_triton_utils, FALLBACK, expand)


def expand(
    output: Tensor, given: Tensor, cu_num_tokens: Tensor, replace_from: float, replace_to: float, *_: Any, **__: Any
) -> None:
    """Fill `output` [num_tokens] with the value of each token's request.

    `given` [batch_size] has the requests' values, of which `replace_from` becomes `replace_to`; `cu_num_tokens`
    [batch_size] where each request's tokens end.
    """
    num_tokens = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(given.masked_fill(given == replace_from, replace_to).repeat_interleave(num_tokens))
