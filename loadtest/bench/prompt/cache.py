"""A simulated prefix cache of whole blocks, like the engine's, and the statistics of its hits."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.bench.common.figures import percentile


class BlockCache:
    """A prefix cache of blocks of tokens, each under the block before it."""

    def __init__(self, block_size: int, capacity: int = 0) -> None:
        """Keep `capacity` blocks, the least recently used forgotten first; 0 keeps all."""
        self.block_size = block_size
        self._capacity = capacity
        self._ids: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._num_made = 0

    def prefill(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt must be computed, and keep its whole blocks."""
        num_cached, parent, is_hit = 0, 0, True
        for begin in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            key = (parent, array("I", token_ids[begin : begin + self.block_size]).tobytes())
            found = self._ids.get(key)
            is_hit = is_hit and found is not None and begin + self.block_size < len(token_ids)
            num_cached += self.block_size if is_hit else 0
            parent = self._keep(key, found)
        return len(token_ids) - num_cached

    def _keep(self, key: tuple[int, bytes], found: int | None) -> int:
        if found is None:
            self._num_made += 1
            found = self._ids[key] = self._num_made
            if self._capacity and len(self._ids) > self._capacity:
                self._ids.popitem(last=False)
        else:
            self._ids.move_to_end(key)
        return found


@dataclass(slots=True)
class LayoutStats:
    """Prefix-cache statistics of one layout's prompts, for a cache of each block size."""

    caches: list[BlockCache]
    num_tokens: int = 0
    prefilled: dict[int, list[int]] = field(default_factory=dict)

    def add(self, token_ids: Sequence[int]) -> None:
        """Count a prompt."""
        self.num_tokens += len(token_ids)
        for cache in self.caches:
            self.prefilled.setdefault(cache.block_size, []).append(cache.prefill(token_ids))

    def figures(self, block_size: int) -> dict[str, float]:
        """Return the figures of one cache."""
        prefilled = self.prefilled[block_size]
        return {
            "prompt_tokens_per_key": round(self.num_tokens / len(prefilled), 1),
            "prefilled_tokens_per_key": round(sum(prefilled) / len(prefilled), 1),
            "prefilled_tokens_p50": percentile(prefilled, 50),
            "prefilled_tokens_p95": percentile(prefilled, 95),
            "cached_share": round(1 - sum(prefilled) / self.num_tokens, 4),
        }
