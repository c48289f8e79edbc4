"""The settings of a replay of typing: the model, the files and keys, and the simulated prefix cache."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from completion_server.engine.settings import CPU_BLOCK_SIZE
from loadtest.bench.common.prompts import PromptMaker
from loadtest.bench.prompt.cache import BlockCache, LayoutStats
from loadtest.traffic.documents import library_files

BLOCK_SIZES = tuple(dict.fromkeys((CPU_BLOCK_SIZE, 16, 32)))
"""The CPU engine's own, vLLM's on a GPU, and the smallest that vLLM advises on a CPU."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings that all replays share."""

    model: str
    """Folder with a tokenizer.json."""
    num_files: int = 12
    """Files of the standard library to type into."""
    num_keys: int = 150
    """Keys in each file."""
    seed: int = 1
    max_prompt_tokens: int = 1024
    block_sizes: tuple[int, ...] = BLOCK_SIZES
    """Tokens of a cache block; each size has a cache of its own."""
    cache_blocks: int = 0
    """Blocks that a cache holds; 0 is no limit."""
    prompt: Mapping[str, Any] = field(default_factory=dict)
    """The server's `[prompt]` section, without `max_prompt_tokens`."""

    def files(self) -> dict[str, str]:
        """Return the files to type into, by path."""
        return library_files(self.num_files, self.seed)

    def prompt_maker(self) -> PromptMaker:
        """Return a maker of prompts that knows no document yet.

        Raises:
            ConfigError: there is no such model, or the prompt section can't be used.

        """
        return PromptMaker(self.model, {**self.prompt, "max_prompt_tokens": self.max_prompt_tokens})

    def layout_stats(self) -> LayoutStats:
        """Return statistics with an empty cache of each block size."""
        return LayoutStats([BlockCache(size, self.cache_blocks) for size in self.block_sizes])
