"""Two mends of vLLM 0.32 on a CPU, both of sampling. Greedy text is right without them.

Temperature: vLLM spreads each request's temperature, top-k and top-p over its drafted tokens (`expand_kernel`). Its
fallback for machines without Triton writes the result to a copy in int64 and drops it, so what the caller reads was
never written.

Seed: a request that has one draws a token after each part of a prompt that is computed in parts, and vLLM winds the
generator back. A CPU's generator can't be wound back and says so in an error, which ends the engine.

vLLM calls `register` in each of its processes, as one of its general plugins, before it puts its fallbacks in place.
"""

from typing import Any

from torch import Generator, Tensor

FALLBACK = "_expand_kernel_impl"


def register() -> None:
    """Mend what this version has of both, on a CPU alone."""
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
    output: Tensor, given: Tensor, cu_num_tokens: Tensor, replace_from: float, replace_to: float, *_: Any, **__: Any
) -> None:
    """Fill `output` [num_tokens] with the value of each token's request.

    `given` [batch_size] has the requests' values, of which `replace_from` becomes `replace_to`; `cu_num_tokens`
    [batch_size] where each request's tokens end.
    """
    num_tokens = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(given.masked_fill(given == replace_from, replace_to).repeat_interleave(num_tokens))


def _mend_runner() -> None:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    keep_books = CPUModelRunner._bookkeeping_sync

    def keep_books_without_winding(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        """Wind back by hand, and hide the generators from vLLM's own way of it."""
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        for index in self.discard_request_mask.np[: batch.num_reqs].nonzero()[0]:
            rewind(generators.get(int(index)))
        try:
            return keep_books(self, *args, **kwargs)
        finally:
            batch.generators = generators

    CPUModelRunner._bookkeeping_sync = keep_books_without_winding  # type: ignore[assignment, method-assign]


def rewind(generator: Generator | None) -> None:
    """Wind a generator back to its seed: whoever's prompt is not computed yet has drawn nothing that counts."""
    if generator is not None:
        generator.manual_seed(generator.initial_seed())
