"""Rows of tokens for training: windows of source files, most split for fill-in-the-middle, packed without padding.

A batch is a pure function of (seed, step), so a resumed run sees what an uninterrupted one would have seen. Windows
start at places spread evenly over the corpus (a golden-ratio sequence), and every visit draws a new split.

Samples packed in a row can attend to the ones before them. That is harmless here: positions are relative, every sample
opens with a marker, and a sample that precedes is unrelated text, which is soon learnt to be ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random

import numpy as np
import torch
from torch import Tensor

from draft_model.fim import encode_split, ragged_pieces, split_at_random
from draft_model.tokenizer import Encoder

FIM_SHARE = 0.6
RAGGED_SHARE = 0.6
RAGGED_MEAN_CHARS = 40
MIN_WINDOW_CHARS, MAX_WINDOW_CHARS = 120, 2800
GOLDEN_RATIO = 0.6180339887498949
SLOTS_A_STEP = 1 << 20
MAX_TRIES = 100
CHARS_A_TOKEN = 2.6
"""Less than the tokenizer's 3.5, so that a window which should fit nearly always does."""
MIN_ROOM_TOKENS = 48


@dataclass(frozen=True)
class Sample:
    """Token ids and, per token, whether it belongs to a completion (the part that the server will use)."""

    ids: list[int]
    middle_from: int


@dataclass(frozen=True)
class Batch:
    """ids and is_middle, both (rows, context_tokens): int64 and bool."""

    ids: Tensor
    is_middle: Tensor


class CorpusText:
    """Documents addressed by one position in [0, 1), each in proportion to its length."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text for text in texts if text.strip()]
        if not self._texts:
            raise ValueError("no text to draw from")
        self._starts = np.cumsum([0, *(len(text) for text in self._texts)])

    def window(self, position: float, num_chars: int) -> str:
        """Whole lines around `position`: from a line start, `num_chars` or a line more, within one document."""
        offset = int(position * int(self._starts[-1]))
        index = int(np.searchsorted(self._starts, offset, side="right")) - 1
        text = self._texts[index]
        inner = max(0, min(offset - int(self._starts[index]), len(text) - num_chars))
        start = text.rfind("\n", 0, inner) + 1
        end = text.find("\n", min(start + num_chars, len(text)))
        return text[start : len(text) if end < 0 else end + 1]


def draw_sample(corpus: CorpusText, position: float, max_tokens: int, encoder: Encoder, rng: Random) -> Sample:
    """One sample of the window at `position`: split for fill-in-the-middle, or plain text from left to right.

    The window's length is log-uniform, and short enough that about `max_tokens` tokens hold it.
    """
    num_chars = exp(rng.uniform(log(MIN_WINDOW_CHARS), log(MAX_WINDOW_CHARS)))
    text = corpus.window(position, int(min(num_chars, max_tokens * CHARS_A_TOKEN)))
    if text.strip() and rng.random() < FIM_SHARE:
        ids, middle_from = encode_split(encoder, split_at_random(text, rng))
        return Sample(ids, middle_from)
    pieces = ragged_pieces(text, rng, RAGGED_MEAN_CHARS) if rng.random() < RAGGED_SHARE else [text]
    ids = [encoder.file_sep, *(token for piece in pieces for token in encoder.encode(piece))]
    return Sample(ids, len(ids))


class BatchSource:
    """Batches by step number; two sources with the same corpus, encoder and seed give the same batches.

    Every batch holds `batch_tokens` tokens. The length of its rows goes through `row_tokens`, one entry a step:
    attention over short rows costs less, and one step in every round has rows of the full context.
    """

    def __init__(
        self, corpus: CorpusText, encoder: Encoder, batch_tokens: int, row_tokens: Sequence[int], seed: int
    ) -> None:
        self._corpus = corpus
        self._encoder = encoder
        self._batch_tokens = batch_tokens
        self._row_tokens = tuple(row_tokens)
        self._seed = seed

    def batch(self, step: int) -> Batch:
        """The batch of one step, every row full."""
        tokens = self._row_tokens[step % len(self._row_tokens)]
        rows = [self._row(step, row, tokens) for row in range(self._batch_tokens // tokens)]
        ids, is_middle = zip(*rows, strict=True)
        return Batch(torch.tensor(ids, dtype=torch.int64), torch.tensor(is_middle, dtype=torch.bool))

    def _row(self, step: int, row: int, tokens: int) -> tuple[list[int], list[bool]]:
        rng = Random(f"{self._seed}:{step}:{row}")
        ids: list[int] = []
        is_middle: list[bool] = []
        slot = step * SLOTS_A_STEP + row * tokens
        last_slot = slot + MAX_TRIES
        while len(ids) < tokens:
            room = tokens - len(ids)
            sample = draw_sample(self._corpus, slot * GOLDEN_RATIO % 1.0, room, self._encoder, rng)
            if len(sample.ids) <= room or room < MIN_ROOM_TOKENS or slot >= last_slot:
                ids += sample.ids[:room]
                is_middle += [index >= sample.middle_from for index in range(min(room, len(sample.ids)))]
            slot += 1
        return ids, is_middle
