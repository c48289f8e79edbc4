"""What the scripted engine is made of: how long a step takes, which prompts are cached, and what is said.

Pure: no tasks, no clock. Knows nothing of requests or users.
"""

import itertools
import random
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from completion_server.engine.interface import GenerationRequest

BLOCK_TOKENS = 16
"""Tokens in a block of the KV cache, as on a GPU."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token with an id that a job may name in `stop_token_ids`."""

    text: str
    """Whole characters; "" where the token only began one."""
    id: int


Script = Callable[[GenerationRequest], Iterable[str | Token]]
"""What a job's generation says, token by token; a plain string is a token with an id that no job can name.

Where it runs out the model ends the generation, which takes a token of its own without text.
"""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """How long things take, in seconds. By default everything is instant."""

    start_s: float = 0.0
    prefill_base_s: float = 0.0
    """Once for a step in which any prompt token is computed."""
    prefill_per_token_s: float = 0.0
    """For each prompt token that the prefix cache does not have."""
    prefill_apart_s: float = 0.0
    """Where it is set, a prompt takes this long apart from all steps, as where other GPUs compute prompts."""
    decode_base_s: float = 0.0
    """Once for a step in which any generation decodes."""
    decode_per_seq_s: float = 0.0
    """For each generation that decodes."""
    draft_s: float = 0.0
    """For each draft token, once for the whole batch: a pass of the draft model."""
    verify_per_token_s: float = 0.0
    """For each draft token of each generation that decodes."""

    def step_s(self, num_prefill_tokens: int, num_decoding: int, num_draft_tokens: int) -> float:
        """Return how long a step takes, for K = `num_draft_tokens`."""
        seconds = 0.0
        if num_prefill_tokens:
            seconds += self.prefill_base_s + num_prefill_tokens * self.prefill_per_token_s
        if num_decoding:
            per_seq = self.decode_per_seq_s + num_draft_tokens * self.verify_per_token_s
            seconds += self.decode_base_s + num_decoding * per_seq + num_draft_tokens * self.draft_s
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
"""Sizes, not a measurement of one model.

Decoding is fitted to 292 tokens/s alone and 2,500 at 64 (30M parameters, bf16, vLLM on two x86-64 cores), prefill to
the TTFTs of a 14M model at two prompt lengths; the draft's share is an assumption.
"""

LARGE_MODEL_ON_A_GPU = ServiceTimes(prefill_base_s=45e-3, decode_base_s=8e-3)
"""A 13B model on an A100: 45 ms of prefill, as a company reports at p50 for about 1,024 tokens; 8 ms for a decode step
is an assumption. That neither depends on the batch is a simplification.

A request alone has its first token after 45 ms and 20 more after 205 ms. Prompts and decoding share a step, so each
step with a prompt in it takes those who decode 53 ms.
"""

LARGE_MODEL_PREFILLED_APART = ServiceTimes(prefill_apart_s=45e-3, decode_base_s=8e-3)
"""The same where prompts don't delay those who decode."""

SERVICE_TIMES = {
    "instant": INSTANT,
    "small_model_on_two_cores": SMALL_MODEL_ON_TWO_CORES,
    "large_model_on_a_gpu": LARGE_MODEL_ON_A_GPU,
    "large_model_prefilled_apart": LARGE_MODEL_PREFILLED_APART,
}
"""By the name that the configuration has for them."""


class PrefixCache:
    """Which prompt blocks are computed: a tree of whole blocks under each salt, bounded by dropping the stalest."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._ids: OrderedDict[tuple[int | str, bytes], int] = OrderedDict()
        self._new_ids = itertools.count()

    def num_cached(self, blocks: list[bytes], salt: str) -> int:
        """Return how many blocks at a prompt's beginning are cached."""
        keys = self._walk(blocks, salt)
        for key in keys:
            self._ids.move_to_end(key)
        return len(keys)

    def insert(self, blocks: list[bytes], salt: str) -> None:
        """Add a computed prompt's whole blocks."""
        keys = self._walk(blocks, salt)
        parent: int | str = self._ids[keys[-1]] if keys else salt
        for block in blocks[len(keys) :]:
            key = (parent, block)
            parent = self._ids[key] = next(self._new_ids)
            keys.append(key)
        for key in reversed(keys):  # a block is dropped before the one it continues
            self._ids.move_to_end(key)
        while len(self._ids) > self._num_blocks:
            self._ids.popitem(last=False)

    def _walk(self, blocks: list[bytes], salt: str) -> list[tuple[int | str, bytes]]:
        """Return the keys of the cached blocks at the prompt's beginning."""
        keys: list[tuple[int | str, bytes]] = []
        parent: int | str = salt
        for block in blocks:
            key = (parent, block)
            found = self._ids.get(key)
            if found is None:
                break
            keys.append(key)
            parent = found
        return keys


def blocks_of(token_ids: list[int]) -> list[bytes]:
    """Return the whole blocks of a prompt."""
    packed = array("I", token_ids).tobytes()
    size = len(packed) // len(token_ids) * BLOCK_TOKENS if token_ids else 1
    return [packed[at : at + size] for at in range(0, len(packed) - size + 1, size)]


_NAMES = ("item", "value", "result", "node", "index", "total", "names", "größe")
_CALLS = (" load", " next_of", " parse", " max", " self.get", " merge")
_TOKENS = {
    text: Token(text, 1000 + at)
    for at, text in enumerate((*_NAMES, *("    " + name for name in _NAMES), *_CALLS, " =", "(", ")\n"))
}


def plausible_code(job: GenerationRequest) -> Iterator[Token]:
    """Say lines of code without end, with token ids from 1,000 on.

    For one prompt always the same, except where the job samples: then for one prompt and seed, or else job.
    """
    sampling = job.sampling
    source: int | str = job.id if sampling.seed is None else sampling.seed
    prompt = zlib.crc32(array("I", job.prompt_token_ids).tobytes())
    rng = random.Random(zlib.crc32(str(source).encode(), prompt) if sampling.temperature > 0 else prompt)
    indent = ""
    while True:
        for text in (indent + rng.choice(_NAMES), " =", rng.choice(_CALLS), "(", rng.choice(_NAMES), ")\n"):
            yield _TOKENS[text]
        indent = "    "
