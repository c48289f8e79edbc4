"""Training speed: the preset at its real size on random tokens, under torchrun as on a fleet."""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from completion_server.prompt.templates import EMBEDDED
from draft_model.data.shards import TOKENIZER, DataManifest, DataSettings, save_manifest, shard_paths
from draft_model.gpu.processes import ROOT, peak_memory, run
from draft_model.gpu.sizes import SKIPPED_STEPS, Sizes

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write_data(sizes: Sizes, out: Path) -> None:
    """Write a data folder as `draft-model data` does, of random tokens: one shard, rows as long as the context."""
    vocab_size, blocks = sizes.draft.vocab_size, 64
    settings = DataSettings(
        blocks * sizes.block_tokens, sizes.block_tokens, (sizes.draft.context_tokens,), blocks_a_shard=blocks
    )
    manifest = DataManifest(settings, EMBEDDED, "random", "", "", vocab_size)
    (out / TOKENIZER).mkdir(parents=True)
    for name in TOKENIZER_FILES:
        (out / TOKENIZER / name).write_bytes((ROOT / "target_model" / "embedded" / name).read_bytes())
    save_manifest(manifest, out)
    rng = np.random.default_rng(0)
    ids, marks = shard_paths(out, 0)
    np.save(ids, rng.integers(0, vocab_size, (blocks, sizes.block_tokens), dtype=np.uint16))
    np.save(marks, rng.integers(0, 256, (blocks, sizes.block_tokens // 8), dtype=np.uint8))


def measure_training(sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Train for some minutes; return figures from the run's own record. ClickException when there are too few steps."""
    write_data(sizes, folder / "data")
    is_timed = sizes.train_steps is None
    budget = ["--minutes", str(sizes.train_minutes)] if is_timed else ["--steps", str(sizes.train_steps)]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
        "-m", "draft_model", "train", "--preset", sizes.preset, "--data", str(folder / "data"),
        "--out", str(folder / "run"), "--batch-tokens", str(sizes.batch_tokens), *budget,
    ]  # fmt: skip
    with peak_memory() as peak:
        run(command)
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines][SKIPPED_STEPS:]
    if not steps:
        raise click.ClickException(f"no more than {SKIPPED_STEPS} steps were made; give --train-minutes more")
    return {
        "preset": sizes.preset,
        "parameters": sizes.draft.num_parameters,
        "steps": len(steps),
        "batch_tokens": sizes.batch_tokens,
        "block_tokens": sizes.block_tokens,
        "tokens_per_s": round(median(step["tokens_per_s"] for step in steps)),
        "mfu": round(median(step["utilisation"] for step in steps), 4),
        "peak_memory_mib": round(peak()),
    }
