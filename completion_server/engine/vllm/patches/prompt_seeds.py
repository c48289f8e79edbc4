"""Draws no token for a request with a seed before its prompt is computed, on a CPU.

For a prompt that is computed in parts vLLM draws a token after each part, drops it and rewinds the generator. A CPU's
generator can't be rewound and raises an error, which ends the engine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from completion_server.engine.vllm.patches.patch import Patch

if TYPE_CHECKING:
    from torch import Generator


def _replacement(sample_tokens: Callable[..., Any]) -> Callable[..., Any]:
    def sample_finished_prompts(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        unfinished = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        with without(batch.generators, unfinished):
            return sample_tokens(self, *args, **kwargs)

    return sample_finished_prompts


@contextmanager
def without(generators: "dict[int, Generator]", indices: Sequence[int]) -> Iterator[None]:
    """Remove the generators of requests whose prompts are not computed yet, so that nothing is drawn from them."""
    kept = {index: generators.pop(index) for index in indices if index in generators}
    try:
        yield
    finally:
        generators.update(kept)


PATCH = Patch(
    name="prompt-seeds",
    fault="a request with a seed and a long prompt ends the engine",
    replaces="vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens",
    digests={"0.32": "047e6a4738dead56"},
    replacement=_replacement,
    is_required=True,
)
