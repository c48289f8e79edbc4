"""The models of the scripted engine: service times, prefix cache and text.

Pure: no tasks, no clock. Knows nothing of requests or users.
"""

import itertools
import random
import zlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from completion_server.engine.interface import GenerationRequest

BLOCK_TOKENS = 16
"""Tokens in a block of the KV cache, as on a GPU."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token with an id that a request may name in `stop_token_ids`."""

    text: str
    """Whole characters; "" if the token only begins one."""
    id: int


Script = Callable[[GenerationRequest], Iterable[str | Token]]
"""Returns the tokens of a generation. A plain string is a token with an id that no request can name.

After the last token the model ends the generation, which takes a token of its own without text.
"""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Durations in seconds. By default everything is instant."""

    start_s: float = 0.0
    prefill_base_s: float = 0.0
    """Once for a step in which any prompt token is computed."""
    prefill_per_token_s: float = 0.0
    """For each prompt token that is not in the prefix cache."""
    prefill_apart_s: float = 0.0
    """If above 0, a prompt takes this long and delays no step, as if other GPUs computed prompts."""
    decode_base_s: float = 0.0
    """Once for a step in which any generation decodes."""
    decode_per_seq_s: float = 0.0
    """For each generation that decodes."""
    draft_s: float = 0.0
    """For each draft token, once for the whole batch: a pass of the draft model."""
    verify_per_token_s: float = 0.0
    """For each draft token of each generation that decodes."""

    def step_s(self, num_prefill_tokens: int, num_decoding: int, num_speculative_tokens: int) -> float:
        """Return the duration of a step with K = `num_speculative_tokens`."""
        seconds = 0.0
        if num_prefill_tokens:
            seconds += self.prefill_base_s + num_prefill_tokens * self.prefill_per_token_s
        if num_decoding:
            per_seq = self.decode_per_seq_s + num_speculative_tokens * self.verify_per_token_s
            seconds += self.decode_base_s + num_decoding * per_seq + num_speculative_tokens * self.draft_s
        return seconds


INSTANT = ServiceTimes()

SMALL_MODEL_ON_TWO_CORES = ServiceTimes(
    prefill_base_s=3e-3,
    prefill_per_token_s=8e-5,
    decode_base_s=3.1e-3,
    decode_per_seq_s=3.5e-4,
    draft_s=1e-3,
    verify_per_token_s=5e-5,
)
"""Plausible sizes, not a measurement of one model.

Decoding is fitted to 292 tokens/s alone and 2,500 at 64 (30M parameters, bf16, vLLM on two x86-64 cores), prefill to
the TTFTs of a 14M model at two prompt lengths; the draft's share is an assumption.
"""

LARGE_MODEL_ON_A_GPU = ServiceTimes(prefill_base_s=45e-3, decode_base_s=8e-3)
"""A 13B model on an A100: 45 ms of prefill, as a company reports at p50 for about 1,024 tokens; 8 ms for a decode step
is an assumption. That neither depends on the batch is a simplification.

A request alone has its first token after 45 ms and 20 more after 205 ms. Prompts and decoding share a step, so a step
with a prompt takes 53 ms for the generations that decode.
"""

LARGE_MODEL_PREFILLED_APART = ServiceTimes(prefill_apart_s=45e-3, decode_base_s=8e-3)
"""The same, but prompts don't delay the generations that decode."""

SERVICE_TIMES = {
    "instant": INSTANT,
    "small_model_on_two_cores": SMALL_MODEL_ON_TWO_CORES,
    "large_model_on_a_gpu": LARGE_MODEL_ON_A_GPU,
    "large_model_prefilled_apart": LARGE_MODEL_PREFILLED_APART,
}
"""By their names in the configuration."""


class PrefixCache:
    """The prompt blocks that are computed, with LRU eviction."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._known: OrderedDict[int, None] = OrderedDict()

    def num_cached(self, blocks: list[int]) -> int:
        """Return how many blocks at a prompt's beginning are cached."""
        found = list(itertools.takewhile(self._known.__contains__, blocks))
        self._use(found)
        return len(found)

    def insert(self, blocks: list[int]) -> None:
        """Add a computed prompt's whole blocks."""
        self._known.update(dict.fromkeys(blocks))
        self._use(reversed(blocks))  # a block is evicted before its parent
        while len(self._known) > self._num_blocks:
            self._known.popitem(last=False)

    def _use(self, blocks: Iterable[int]) -> None:
        deque(map(self._known.move_to_end, blocks), maxlen=0)  # the loop runs in C: a prompt has a hundred blocks


def blocks_of(token_ids: list[int], salt: str) -> list[int]:
    """Return the hashes of a prompt's whole blocks, each with all blocks before it and the salt."""
    packed = array("I", token_ids)
    size, num_bytes = BLOCK_TOKENS * packed.itemsize, len(packed) * packed.itemsize
    tokens = packed.tobytes()
    blocks, parent = list[int](), hash(salt)
    for at in range(size, num_bytes + 1, size):
        parent = hash((parent, tokens[at - size : at]))
        blocks.append(parent)
    return blocks


_NAMES = ("item", "value", "result", "node", "index", "total", "names", "größe")
_CALLS = (" load", " next_of", " parse", " max", " self.get", " merge")
_TOKENS = {
    text: Token(text, 1000 + at)
    for at, text in enumerate((*_NAMES, *("    " + name for name in _NAMES), *_CALLS, " =", "(", ")\n"))
}


def plausible_code(request: GenerationRequest) -> Iterator[Token]:
    """Yield lines of code without end, with token ids from 1,000 on.

    A greedy request gets the same text for the same prompt. A sampled one gets the same text for the same prompt and
    seed, or for the same prompt and request id if it has no seed.
    """
    sampling = request.sampling
    source: int | str = request.id if sampling.seed is None else sampling.seed
    prompt = zlib.crc32(array("I", request.prompt_token_ids).tobytes())
    rng = random.Random(zlib.crc32(str(source).encode(), prompt) if sampling.temperature > 0 else prompt)
    indent = ""
    while True:
        for text in (indent + rng.choice(_NAMES), " =", rng.choice(_CALLS), "(", rng.choice(_NAMES), ")\n"):
            yield _TOKENS[text]
        indent = "    "
