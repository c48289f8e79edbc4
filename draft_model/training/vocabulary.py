"""Cuts the vocabulary of a small draft: most of its weights and time would go into tokens that code seldom has."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draft_model.data.shards import IDS

COUNTED_BLOCKS = 4096
EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")
KEPT = "kept_tokens.json"
"""The file of a model folder that lists the tokens of a cut vocabulary."""


class CutVocabulary:
    """Some tokens of a vocabulary; all others are one, the last.

    The exported model has the whole vocabulary again, as vLLM asks of a draft: what it learned of the others together
    stands at each of them. Its most likely token is right, so greedy drafts are; its probabilities are not.
    """

    def __init__(self, kept: Sequence[int], full_size: int) -> None:
        self.kept, self.full_size, self._other = sorted(kept), full_size, len(kept)
        self._places = torch.full((full_size,), self._other)
        self._places[self.kept] = torch.arange(self._other)

    @classmethod
    def of_frequent(cls, rows: Any, size: int, full_size: int) -> "CutVocabulary":  # noqa: ANN401 - datasets has no types
        """The `size - 1` most frequent tokens of data, of a sample if it is long; the same ones at each call."""
        columns, counts = rows.select_columns([IDS]), np.zeros(full_size, np.int64)
        chosen = np.random.default_rng(0).permutation(len(columns))[:COUNTED_BLOCKS]
        for block in chosen:
            counts += np.bincount(columns[int(block)][IDS], minlength=full_size)
        return cls(np.argsort(-counts, kind="stable")[: size - 1].tolist(), full_size)

    @classmethod
    def of_model(cls, folder: Path, full_size: int) -> "CutVocabulary | None":
        """The tokens that a model tells apart; None if these are all."""
        path = folder / KEPT
        return cls(json.loads(path.read_text(encoding="utf-8")), full_size) if path.is_file() else None

    @property
    def size(self) -> int:
        """The number of tokens told apart, the others among them as one."""
        return self._other + 1

    def cut(self, ids: Tensor) -> Tensor:
        """Ids of the target's vocabulary as ids of the cut one, of the same shape."""
        self._places = self._places.to(ids.device)
        return self._places[ids]

    def cut_labels(self, likely: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Labels in the cut vocabulary; one that is not kept has probability 0, so that it counts as not labelled."""
        cut = self.cut(likely)
        return cut, logprobs.masked_fill(cut == self._other, -torch.inf)

    def contract(self, embedding: Tensor) -> Tensor:
        """The rows of an embedding that the cut vocabulary has; the others' is the mean of theirs."""
        is_other = torch.ones(len(embedding), dtype=torch.bool)
        is_other[self.kept] = False
        return torch.cat([embedding[self.kept], embedding[is_other].mean(0, keepdim=True)])

    def expand(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a model, with a row of the embedding for every token of the whole vocabulary."""
        places = self._places.cpu()
        return {name: value[places] if name in EMBEDDINGS else value for name, value in weights.items()}
