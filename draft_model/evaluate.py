"""Figures of merit on held-out files: loss, bits per byte, completions, and how often target and draft agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from draft_model.data import CorpusText
from draft_model.errors import PipelineError
from draft_model.fim import Split, encode_split, split_at_random
from draft_model.model import token_losses
from draft_model.tokenizer import Encoder

NUM_SPLITS = 400
SPLIT_CHARS = 1600
SEED = 11
AGREEMENT_ROWS = 80


@dataclass(frozen=True)
class Evaluation:
    """`loss` is nats a token over held-out text, `bits_per_byte` the same per UTF-8 byte of it.

    `middle_loss` is nats a token over the completions of held-out fill-in-the-middle splits, end marker included, and
    `first_token_accuracy` how often the most likely first token of the completion is the true one.
    """

    loss: float
    bits_per_byte: float
    num_tokens: int
    middle_loss: float
    first_token_accuracy: float
    num_splits: int


@dataclass(frozen=True)
class Agreement:
    """How often the draft's most likely next token is the target's, over held-out text and inside completions."""

    text: float
    completions: float


def load_model(folder: Path) -> LlamaForCausalLM:
    """A model folder as a float32 model in evaluation mode; PipelineError when it is not one."""
    if not (folder / "config.json").is_file():
        raise PipelineError(f"{folder} is not a model folder: it has no config.json")
    model = LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    model.requires_grad_(False)
    return model


def text_rows(texts: Sequence[str], encoder: Encoder, row_tokens: int) -> tuple[list[Tensor], int]:
    """Each text's tokens behind a file separator, in rows of at most `row_tokens`; and the bytes they stand for."""
    rows: list[Tensor] = []
    size = row_tokens - 1
    for text in texts:
        ids = encoder.encode(text)
        rows += [torch.tensor([[encoder.file_sep, *ids[at : at + size]]]) for at in range(0, len(ids), size)]
    return rows, sum(len(text.encode()) for text in texts)


def held_out_splits(texts: Sequence[str], num_splits: int = NUM_SPLITS, seed: int = SEED) -> list[Split]:
    """The same fill-in-the-middle splits for every model."""
    corpus, rng = CorpusText(texts), Random(seed)
    windows = (corpus.window(rng.random(), SPLIT_CHARS) for _ in range(num_splits))
    return [split_at_random(window, rng) for window in windows if window.strip()]


@torch.inference_mode()
def evaluate(
    model: LlamaForCausalLM, encoder: Encoder, texts: Sequence[str], num_splits: int = NUM_SPLITS
) -> Evaluation:
    """Measure a model on held-out texts, in float32."""
    rows, num_bytes = text_rows(texts, encoder, model.config.max_position_embeddings)
    total = sum(float(token_losses(model, row).sum()) for row in rows)
    num_tokens = sum(row.shape[1] - 1 for row in rows)
    middle_total, num_middle, num_first = 0.0, 0, 0
    splits = held_out_splits(texts, num_splits)
    for split in splits:
        ids, middle_from = encode_split(encoder, split)
        row = torch.tensor([ids[-model.config.max_position_embeddings :]])
        logits = model(input_ids=row, use_cache=False).logits[0, middle_from - 1 - len(ids) : -1].float()
        targets = row[0, middle_from - len(ids) :]
        middle_total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
        num_middle += len(targets)
        num_first += int(logits[0].argmax() == targets[0])
    return Evaluation(
        total / num_tokens, total / math.log(2) / num_bytes, num_tokens,
        middle_total / num_middle, num_first / len(splits), len(splits),
    )  # fmt: skip


@torch.inference_mode()
def measure_agreement(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    encoder: Encoder,
    texts: Sequence[str],
    num_splits: int = NUM_SPLITS,
) -> Agreement:
    """Compare two models' greedy choices at every position of some held-out rows and of held-out completions."""
    rows, _ = text_rows(texts, encoder, target.config.max_position_embeddings)
    rows = rows[:: max(1, len(rows) // AGREEMENT_ROWS)]
    agreed = [_greedy(target, row) == _greedy(draft, row) for row in rows]
    inside = []
    for split in held_out_splits(texts, num_splits):
        ids, middle_from = encode_split(encoder, split)
        row = torch.tensor([ids])
        inside.append((_greedy(target, row) == _greedy(draft, row))[middle_from - 1 : -1])
    return Agreement(float(torch.cat(agreed).float().mean()), float(torch.cat(inside).float().mean()))


def _greedy(model: LlamaForCausalLM, row: Tensor) -> Tensor:
    chosen: Tensor = model(input_ids=row, use_cache=False).logits[0].argmax(dim=-1)
    return chosen
