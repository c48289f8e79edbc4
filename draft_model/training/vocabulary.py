"""Cuts the vocabulary of a small draft: most of its weights and time would go into tokens that code seldom has."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draft_model.data.shards import IDS

COUNTED_BLOCKS = 4096
EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")


class CutVocabulary:
    """The `size - 1` most frequent tokens of training data; all others are one, the last.

    The exported model has the whole vocabulary again, as vLLM asks of a draft: what it learned of the others together
    stands at each of them. It then drafts one of them where it expects any; its target refuses that.
    """

    def __init__(self, rows: Any, size: int, full_size: int) -> None:  # noqa: ANN401 - datasets has no types
        """Count the tokens of `rows`, of a sample of them if they are many; the order is the same at each call."""
        counts = np.zeros(full_size, np.int64)
        for block in range(0, len(rows), max(1, len(rows) // COUNTED_BLOCKS)):
            counts += np.bincount(rows[block][IDS], minlength=full_size)
        kept = np.sort(np.argsort(-counts, kind="stable")[: size - 1])
        self.share = float(counts[kept].sum() / max(1, counts.sum()))
        """Of the counted tokens that are kept."""
        self._places = torch.full((full_size,), size - 1)
        self._places[torch.from_numpy(kept)] = torch.arange(size - 1)
        self._other, self.full_size = size - 1, full_size

    def cut(self, ids: Tensor) -> Tensor:
        """Ids of the target's vocabulary as ids of the cut one, of the same shape."""
        self._places = self._places.to(ids.device)
        return self._places[ids]

    def cut_labels(self, likely: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Labels in the cut vocabulary; one that is not kept has probability 0, so that it counts as not labelled."""
        cut = self.cut(likely)
        return cut, logprobs.masked_fill(cut == self._other, -torch.inf)

    def contract(self, embedding: Tensor) -> Tensor:
        """The rows of an embedding that the cut vocabulary has; that of the others is the row of one of them.

        It may be padded otherwise than the vocabulary: no text has these tokens.
        """
        places = self._places.cpu()[: len(embedding)]
        rows = embedding.new_zeros(self._other + 1, embedding.shape[1])
        rows[places] = embedding[: len(places)]
        return rows

    def expand(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a model, with a row of the embedding for every token of the whole vocabulary."""
        places = self._places.cpu()
        return {name: value[places] if name in EMBEDDINGS else value for name, value in weights.items()}
