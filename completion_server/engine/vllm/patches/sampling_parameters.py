"""Expands each request's temperature, top-k and top-p to its drafted tokens on a CPU.

vLLM's fallback for machines without Triton writes the result to a copy in int64 and drops it. The caller then reads
memory that was never written, also for the greedy requests of the step.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from completion_server.engine.vllm.patches.patch import Patch

if TYPE_CHECKING:
    from torch import Tensor


def expand(
    output: "Tensor",
    given: "Tensor",
    cu_num_tokens: "Tensor",
    replace_from: float,
    replace_to: float,
    _max_tokens: int = 0,
) -> None:
    """Fill `output` [num_tokens] with the value of each token's request.

    `given` [batch_size] has the requests' values, in which `replace_from` becomes `replace_to`; `cu_num_tokens`
    [batch_size] has the end of each request's tokens.
    """
    num_tokens = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(given.masked_fill(given == replace_from, replace_to).repeat_interleave(num_tokens))


def _replacement(_fallback: object) -> Callable[..., None]:
    return expand


PATCH = Patch(
    name="sampling-parameters",
    fault="completions are wrong in any step that has drafts and a request with a temperature",
    replaces="vllm.utils.cpu_triton_utils:_expand_kernel_impl",
    digests={"0.32": "b0d7df291932f1c3"},
    replacement=_replacement,
    is_required=True,
)
