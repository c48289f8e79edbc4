"""Patches of vLLM 0.32 on a CPU: two of its sampling, which a step with only greedy requests does not need, and one
that corrects torch where it loads compiled code (`compiled`).

Temperature: vLLM expands each request's temperature, top-k and top-p to its drafted tokens (`expand_kernel`). Its
fallback for machines without Triton writes the result to a copy in int64 and drops it, so that the caller reads memory
that was never written, also for the greedy requests of the step.

Seed: for a prompt that is computed in parts, a request with a seed draws a token after each part, and vLLM rewinds the
generator. A CPU's generator can't be rewound and raises an error, which ends the engine.

vLLM calls `register` in each of its processes, as its general plugin `completion_server_on_cpu`, before it installs its
fallbacks. If `VLLM_PLUGINS` names the plugins to use, this must be among them (`process.check_plugins`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Generator, Tensor

from completion_server.engine.vllm import compiled

FALLBACK = "_expand_kernel_impl"


def register() -> None:
    """Apply the patches, on a CPU only."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.utils import cpu_triton_utils

    if hasattr(cpu_triton_utils, FALLBACK):
        setattr(cpu_triton_utils, FALLBACK, expand)
    platform = type(current_platform)
    install_fallbacks = platform.register_triton_kernel_overrides

    def install_all() -> None:
        install_fallbacks()
        _patch_runner()
        compiled.patch_loader()

    # Only the worker's process calls this: importing the runner would take the others half a second.
    platform.register_triton_kernel_overrides = staticmethod(install_all)  # type: ignore[method-assign]


def expand(
    output: Tensor, given: Tensor, cu_num_tokens: Tensor, replace_from: float, replace_to: float, _max_tokens: int = 0
) -> None:
    """Fill `output` [num_tokens] with the value of each token's request.

    `given` [batch_size] has the requests' values, in which `replace_from` becomes `replace_to`; `cu_num_tokens`
    [batch_size] has the end of each request's tokens.
    """
    num_tokens = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(given.masked_fill(given == replace_from, replace_to).repeat_interleave(num_tokens))


@cache
def _patch_runner() -> None:
    """Patch the runner once in a process, however many engines start in it."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    runner: Any = CPUModelRunner
    sample_tokens = runner.sample_tokens

    def sample_finished_prompts(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        unfinished = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        with without(batch.generators, unfinished):
            return sample_tokens(self, *args, **kwargs)

    runner.sample_tokens = sample_finished_prompts


@contextmanager
def without(generators: dict[int, Generator], indices: Sequence[int]) -> Iterator[None]:
    """Remove the generators of requests whose prompts are not computed yet, so that nothing is drawn from them."""
    kept = {index: generators.pop(index) for index in indices if index in generators}
    try:
        yield
    finally:
        generators.update(kept)
