"""Two mends of vLLM 0.32 on a CPU, both of sampling; a step of greedy requests alone is right without them.

Temperature: vLLM spreads each request's temperature, top-k and top-p over its drafted tokens (`expand_kernel`). Its
fallback for machines without Triton writes the result to a copy in int64 and drops it, so what the caller reads, of
the greedy requests of the step too, was never written.

Seed: a request that has one draws a token after each part of a prompt that is computed in parts, and vLLM winds the
generator back. A CPU's generator can't be wound back and says so in an error, which ends the engine.

vLLM calls `register` in each of its processes, as its general plugin `completion_server_on_cpu`, before it puts its
fallbacks in place. Where `VLLM_PLUGINS` names the plugins to use, this must be among them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Generator, Tensor

FALLBACK = "_expand_kernel_impl"


def register() -> None:
    """Mend both, on a CPU alone."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.utils import cpu_triton_utils

    if hasattr(cpu_triton_utils, FALLBACK):
        setattr(cpu_triton_utils, FALLBACK, expand)
    platform = type(current_platform)
    put_fallbacks = platform.register_triton_kernel_overrides

    def put_all() -> None:
        put_fallbacks()
        _mend_runner()

    # Called in the worker's process alone: importing the runner takes the others half a second.
    platform.register_triton_kernel_overrides = staticmethod(put_all)  # type: ignore[method-assign]


def expand(
    output: Tensor, given: Tensor, cu_num_tokens: Tensor, replace_from: float, replace_to: float, _max_tokens: int = 0
) -> None:
    """Fill `output` [num_tokens] with the value of each token's request.

    `given` [batch_size] has the requests' values, of which `replace_from` becomes `replace_to`; `cu_num_tokens`
    [batch_size] where each request's tokens end.
    """
    num_tokens = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(given.masked_fill(given == replace_from, replace_to).repeat_interleave(num_tokens))


@cache
def _mend_runner() -> None:
    """Once in a process, however many engines start in it."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    runner: Any = CPUModelRunner
    sample_tokens = runner.sample_tokens

    def sample_what_counts(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        unfinished = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        with without(batch.generators, unfinished):
            return sample_tokens(self, *args, **kwargs)

    runner.sample_tokens = sample_what_counts


@contextmanager
def without(generators: dict[int, Generator], indices: Sequence[int]) -> Iterator[None]:
    """Take the generators of requests whose prompts are not computed yet away, so that nothing is drawn from them."""
    kept = {index: generators.pop(index) for index in indices if index in generators}
    try:
        yield
    finally:
        generators.update(kept)
