"""Patches for an engine on a CPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from completion_server.engine.vllm.patches.patch import patching

if TYPE_CHECKING:
    from torch import Generator, Tensor


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


@patching(
    "vllm.utils.cpu_triton_utils:_expand_kernel_impl",
    fault="completions are wrong in any step that has drafts and a request with a temperature",
    digests={"0.32": "b0d7df291932f1c3"},
    is_required=True,
)
def sampling_parameters(_fallback: object) -> Callable[..., None]:
    """Expand each request's temperature, top-k and top-p to its drafted tokens.

    vLLM's fallback for machines without Triton writes the result to a copy in int64 and drops it. The caller then reads
    memory that was never written, also for the greedy requests of the step.
    """
    return expand


@contextmanager
def without(generators: "dict[int, Generator]", indices: Sequence[int]) -> Iterator[None]:
    """Remove the generators of requests whose prompts are not computed yet, so that nothing is drawn from them."""
    kept = {index: generators.pop(index) for index in indices if index in generators}
    try:
        yield
    finally:
        generators.update(kept)


@patching(
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens",
    fault="a request with a seed and a long prompt ends the engine",
    digests={"0.32": "047e6a4738dead56"},
    is_required=True,
)
def prompt_seeds(sample_tokens: Callable[..., Any]) -> Callable[..., Any]:
    """Draw no token for a request with a seed before its prompt is computed.

    For a prompt that is computed in parts vLLM draws a token after each part, drops it and rewinds the generator. A
    CPU's generator can't be rewound and raises an error, which ends the engine.
    """

    def sample_finished_prompts(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        unfinished = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        with without(batch.generators, unfinished):
            return sample_tokens(self, *args, **kwargs)

    return sample_finished_prompts


@patching(
    "torch.compiler:load_compiled_function",
    fault="vLLM compiles the models again at each start",
    digests={"0.32": "307dd9d3767a9225"},
)
def compiled_loading(load_compiled_function: Callable[..., Any]) -> Callable[..., Any]:
    """Let vLLM load a model that an earlier start compiled.

    vLLM compiles a model for each of its configurations and keeps the code in its cache (VLLM_CACHE_ROOT). On a CPU it
    then fails to load it, because the function that torch loads lacks the method `finalize_loading`.
    """

    def load(*args: Any, **kwargs: Any) -> Any:
        loaded = load_compiled_function(*args, **kwargs)
        compiled = loaded._artifacts.compiled_fn  # where vLLM looks for the method
        if not hasattr(compiled, "finalize_loading"):
            compiled.finalize_loading = _finalize_loading
        return loaded

    return load


def _finalize_loading(_config: object) -> None:
    """Do nothing: the function that torch loads is complete."""


@patching(
    "vllm.v1.worker.gpu_model_runner:apply_grammar_bitmask",
    fault="each step that begins an answer with given text takes a millisecond longer",
    relies_on={"0.32": "vllm.v1.structured_output.utils:apply_grammar_bitmask"},
    digests={"0.32": "8fea7a83d5fb3007"},
)
def masked_rows(_apply: object) -> Callable[..., None]:
    """Mask the rows of logits that are restricted, in place.

    vLLM copies the logits of the whole batch to 32 bits and back, and makes a bitmask as large.
    """
    import numpy as np
    import torch

    def mask_rows(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: "Tensor") -> None:
        """Set the logits [tokens, vocabulary] of tokens that the bitmask forbids to minus infinity."""
        drafts, num_tokens = scheduler_output.scheduled_spec_decode_tokens, logits.shape[1]
        num_rows = {request_id: 1 + len(drafts.get(request_id, ())) for request_id in input_batch.req_ids}
        row_of = dict(zip(num_rows, accumulate(num_rows.values(), initial=0), strict=False))
        rows = iter(grammar_output.grammar_bitmask)
        for request_id in grammar_output.structured_output_request_ids:
            for at, words in enumerate(islice(rows, 1 + len(drafts.get(request_id, ())))):
                if request_id in row_of and not (words == -1).all():
                    bits = np.unpackbits(words.view(np.uint8), count=num_tokens, bitorder="little")
                    logits[row_of[request_id] + at].masked_fill_(torch.from_numpy(bits) == 0, -torch.inf)

    return mask_rows
