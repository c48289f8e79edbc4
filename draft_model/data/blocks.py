"""Reads training data in blocks.

A seed decides the order of the blocks, a different one in each epoch. Every position of the order is computed directly,
so a run resumes in mid-epoch from the number of its step alone.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draft_model.core.errors import PipelineError
from draft_model.data.shards import DataManifest, load_manifest, shard_paths

OPEN_SHARDS = 128
"""Shards that are mapped at the same time: each holds two file descriptors, and a process may have 1,024."""


@dataclass(frozen=True)
class TokenBlock:
    """ids and is_middle, both (rows, row_tokens): int64 and bool."""

    ids: Tensor
    is_middle: Tensor


class BlockSource:
    """The blocks of a data folder, read in place from disk."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Look for every shard; PipelineError when some are missing."""
        self.manifest: DataManifest = load_manifest(folder)
        settings = self.manifest.settings
        paths = [shard_paths(folder, number) for number in range(settings.num_shards)]
        missing = sum(not all(path.is_file() for path in pair) for pair in paths)
        if missing:
            raise PipelineError(
                f"{folder} lacks {missing} of {len(paths)} shards; run the same `draft-model data` again"
            )
        self._shard = lru_cache(OPEN_SHARDS)(partial(_open_shard, folder))
        self._blocks_a_shard = settings.blocks_a_shard
        self._row_tokens = settings.row_tokens
        self._seed = seed
        self.num_blocks = len(paths) * settings.blocks_a_shard
        self.block_tokens = settings.block_tokens

    def block(self, place: int) -> TokenBlock:
        """The block at a position of the order, which continues from epoch to epoch."""
        epoch, at = divmod(place, self.num_blocks)
        shard, row = divmod(int(_order(self._seed, epoch, self.num_blocks)[at]), self._blocks_a_shard)
        tokens = self._row_tokens[row % len(self._row_tokens)]
        all_ids, is_middle = self._shard(shard)
        ids = torch.from_numpy(all_ids[row].astype(np.int64)).view(-1, tokens)
        bits = np.unpackbits(is_middle[row], count=self.block_tokens).astype(np.bool_)
        return TokenBlock(ids, torch.from_numpy(bits).view(-1, tokens))


def _open_shard(folder: Path, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    ids, is_middle = (np.load(path, mmap_mode="r") for path in shard_paths(folder, number))
    return ids, is_middle


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num_blocks: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(num_blocks)
