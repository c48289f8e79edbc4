"""Lets a target say which tokens it finds likely behind each token of training data: a teacher on disk.

A labelled folder is training data with two columns more. The target computes each block once, and its draft can learn
from it in many passes; beside the draft no target needs memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from draft_model.core import PipelineError, file_digest, weights_digest
from draft_model.data.shards import (
    IDS,
    LABELLED_BY,
    LIKELY,
    LOGPROBS,
    MANIFEST,
    ROW_TOKENS,
    TOKENIZER,
    DataSettings,
    is_labelled,
    load_data,
    missing_shards,
    open_folder,
    read_manifest,
    write_shard,
)
from draft_model.data.tokenizer import check_same_vocabulary
from draft_model.models import load_model, read_config

NUM_LABELS = 32
"""Labels of a token: 192 bytes on disk."""
BLOCKS_A_SHARD = 32


def label(
    target: Path, data: Path, out: Path, num_tokens: int, on_done: Callable[[int, int], None] = lambda done, total: None
) -> DataSettings:
    """Label `num_tokens` of `data`, rounded up to whole shards, in the new folder `out`; return its settings.

    The blocks are drawn from all of `data`. After an interruption the same call makes the missing shards.
    `on_done(done, total)` counts tokens. Raises PipelineError when `data` is shorter or labelled already, `out` was
    made otherwise, the target has another vocabulary, or the disk refuses.
    """
    manifest, rows = read_manifest(data), load_data(data)
    if is_labelled(data):
        raise PipelineError(f"{data} is labelled already")
    check_same_vocabulary(data / TOKENIZER, target)
    settings = replace(DataSettings(**manifest["settings"]), num_tokens=num_tokens, blocks_a_shard=BLOCKS_A_SHARD)
    if settings.made_tokens > (most := len(rows) * settings.block_tokens):
        raise PipelineError(f"{data} has {most:,} tokens, {settings.made_tokens:,} are to be labelled")
    labelled = {**manifest, "settings": asdict(settings), LABELLED_BY: weights_digest(target)}
    labelled |= {"vocab_size": int(read_config(target)["vocab_size"]), "labels": NUM_LABELS}
    labelled["data"] = file_digest(data / MANIFEST)
    open_folder(out, data / TOKENIZER, labelled)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = load_model(target, torch.bfloat16)
    model.to(device)
    order, missing = np.random.default_rng(settings.seed).permutation(len(rows)), missing_shards(out, settings)
    done = settings.made_tokens - len(missing) * BLOCKS_A_SHARD * settings.block_tokens
    for number in missing:
        blocks = []
        for block in order[number * BLOCKS_A_SHARD : (number + 1) * BLOCKS_A_SHARD]:
            on_done(done, settings.made_tokens)
            blocks.append(_labelled(model, rows[int(block)]))
            done += settings.block_tokens
        write_shard(out, number, blocks)
    on_done(done, settings.made_tokens)
    return settings


@torch.inference_mode()
def _labelled(model: PreTrainedModel, block: Mapping[str, Any]) -> dict[str, Any]:
    """A block with its labels. A row at a time: the logits of a long one take hundreds of megabytes."""
    ids = torch.from_numpy(np.asarray(block[IDS], np.int64)).view(-1, int(block[ROW_TOKENS])).to(model.device)
    found = [_likely(model, row[None]) for row in ids]
    likely, logprobs = (np.concatenate(parts).ravel() for parts in zip(*found, strict=True))
    return {**block, ROW_TOKENS: int(block[ROW_TOKENS]), LIKELY: likely, LOGPROBS: logprobs}


def _likely(model: PreTrainedModel, row: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The most likely tokens behind each token of a row (1, tokens), and their logprobs: (tokens, labels) each."""
    logits = model(input_ids=row, use_cache=False).logits[0].float()
    top = logits.topk(NUM_LABELS)
    logprobs = top.values - logits.logsumexp(-1, keepdim=True)
    return top.indices.cpu().numpy().astype(np.uint32), logprobs.cpu().numpy().astype(np.float16)
