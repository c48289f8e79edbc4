"""Calculates which K pays on a GPU from a measured acceptance: a roofline of the target's step and the draft's.

A pass reads the weights once and each request's KV cache, and computes two operations a weight and token; the slower of
weights and operations counts, and a fixed time around them. It knows nothing of kernels: it says where K stops to pay,
not how fast a GPU is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from draft_model.core import PipelineError
from draft_model.training.plan import find_gpu

BATCH_SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
MEMORY_SHARE = 0.9
"""Of a GPU's memory, for weights and KV cache."""


@dataclass(frozen=True)
class ServedModel:
    """What a pass of a model costs. INT8 has a byte a weight and twice the operations per second of bfloat16."""

    num_parameters: float
    kv_bytes_per_token: float
    is_int8: bool
    around_s: float
    """Time of a pass beside weights, cache and operations: launches, and of the target the scheduler's work."""

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights."""
        return self.num_parameters * (1 if self.is_int8 else 2)

    def cache_bytes(self, num_tokens: int) -> float:
        """Bytes of the KV cache of so many tokens."""
        return num_tokens * self.kv_bytes_per_token

    def pass_s(self, gpu: str, batch_size: int, num_tokens: int, context_tokens: int, efficiency: float) -> float:
        """Seconds of a pass over `num_tokens` tokens of `batch_size` requests."""
        kind = find_gpu(gpu)
        reads = self.weight_bytes / kind.bytes_per_s
        computes = 2 * self.num_parameters * num_tokens / (kind.peak_flops * (2 if self.is_int8 else 1))
        cache = self.cache_bytes(batch_size * context_tokens) / kind.bytes_per_s
        return (max(reads, computes) + cache) / efficiency + self.around_s


@dataclass(frozen=True)
class BestLength:
    """The K with the most tokens a second at a batch size."""

    batch_size: int
    num_speculative_tokens: int
    speedup: float
    """Tokens a second over those without drafts."""
    tokens_per_s: float
    """Of one request."""


def best_lengths(
    tokens_a_step: Sequence[float], target: ServedModel, draft: ServedModel, gpu: str, *, context_tokens: int,
    efficiency: float,
) -> list[BestLength]:  # fmt: skip
    """The best K at each batch size whose KV cache fits into the GPU's memory.

    `tokens_a_step` is the measured mean for K = 1, 2, ... (`AcceptanceCounts.mean_length`), and `efficiency` the share
    of the GPU's peaks that a pass reaches. PipelineError for an unknown GPU, too small a one, or impossible means.
    """
    for length, mean in enumerate(tokens_a_step, 1):
        if not 1 <= mean <= length + 1:
            raise PipelineError(f"K = {length} gives 1 to {length + 1} tokens a step, not {mean:g}")
    memory, found = find_gpu(gpu).gib * MEMORY_SHARE * 2**30, []
    for size in BATCH_SIZES:
        taken = sum(one.weight_bytes + one.cache_bytes(size * context_tokens) for one in (target, draft))
        if taken > memory:
            break
        rates = []
        for length, mean in enumerate((1.0, *tokens_a_step)):
            verify = target.pass_s(gpu, size, size * (length + 1), context_tokens, efficiency)
            propose = length * draft.pass_s(gpu, size, size, context_tokens, efficiency)
            rates.append(mean / (verify + propose))
        best = max(range(len(rates)), key=rates.__getitem__)
        found.append(BestLength(size, best, rates[best] / rates[0], rates[best]))
    if not found:
        raise PipelineError(f"one request takes {taken / 2**30:.0f} GiB, of {memory / 2**30:.0f} that {gpu} has for it")
    return found
