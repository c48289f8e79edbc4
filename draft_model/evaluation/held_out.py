"""Measures one model on held-out files: loss, bits per byte, completions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draft_model.data.fim import Split, encode_split, split_at_random
from draft_model.data.samples import CorpusText
from draft_model.data.tokenizer import TemplateEncoder
from draft_model.training.losses import next_token_logits, token_losses

NUM_SPLITS = 400
SPLIT_CHARS = 1600
SEED = 11
ROW_TOKENS = 1024
"""Longest row, also of a longer context: the logits of a row are in memory at once."""


@dataclass(frozen=True)
class Evaluation:
    """`loss` is nats a token over held-out text, `bits_per_byte` the same per UTF-8 byte of it.

    `middle_loss` is nats a token over the completions of held-out fill-in-the-middle splits, with the end marker.
    `first_token_accuracy` is the share of splits whose most likely first token is the true one.
    """

    loss: float
    bits_per_byte: float
    num_tokens: int
    middle_loss: float
    first_token_accuracy: float
    num_splits: int


def text_rows(texts: Sequence[str], encoder: TemplateEncoder, row_tokens: int) -> tuple[list[Tensor], int]:
    """The texts in rows of at most `row_tokens`, each behind the tokens that open a file; and the texts' bytes."""
    rows: list[Tensor] = []
    opening = encoder.encode_file([]) or [encoder.end]
    size = row_tokens - len(opening)
    for text in texts:
        ids = encoder.encode(text)
        rows += [torch.tensor([[*opening, *ids[at : at + size]]]) for at in range(0, len(ids), size)]
    return rows, sum(len(text.encode()) for text in texts)


def held_out_splits(
    texts: Sequence[str], num_splits: int = NUM_SPLITS, seed: int = SEED, *, lines_behind: int = 1
) -> list[Split]:
    """Fill-in-the-middle splits, the same for every model of a template."""
    corpus, rng = CorpusText(texts), Random(seed)
    windows = (corpus.window(rng.random(), SPLIT_CHARS) for _ in range(num_splits))
    return [split_at_random(window, rng, lines_behind=lines_behind) for window in windows if window.strip()]


@torch.inference_mode()
def evaluate(
    model: PreTrainedModel, encoder: TemplateEncoder, texts: Sequence[str], num_splits: int = NUM_SPLITS,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:  # fmt: skip
    """Measure a model on held-out texts, in float32. `on_done(done, total)` is called after each row and split."""
    rows, num_bytes = text_rows(texts, encoder, min(ROW_TOKENS, model.config.max_position_embeddings))
    total = 0.0
    for number, row in enumerate(rows, 1):
        total += float(token_losses(next_token_logits(model, row), row).sum())
        on_done(number, len(rows) + num_splits)
    num_tokens = sum(row.shape[1] - 1 for row in rows)
    middle_total, num_middle, num_first = 0.0, 0, 0
    splits = held_out_splits(texts, num_splits, lines_behind=encoder.template.lines_behind)
    for number, split in enumerate(splits, len(rows) + 1):
        ids, middle_from = encode_split(encoder, split)
        row = torch.tensor([ids[-model.config.max_position_embeddings :]])
        logits = model(input_ids=row, use_cache=False).logits[0, middle_from - 1 - len(ids) : -1].float()
        targets = row[0, middle_from - len(ids) :]
        middle_total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
        num_middle += len(targets)
        num_first += int(logits[0].argmax() == targets[0])
        on_done(number, len(rows) + len(splits))
    return Evaluation(
        total / num_tokens, total / math.log(2) / num_bytes, num_tokens,
        middle_total / num_middle, num_first / len(splits), len(splits),
    )  # fmt: skip
