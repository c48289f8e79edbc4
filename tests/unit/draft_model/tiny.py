"""A corpus and a preset that train in a second; run as a program, the command line with that preset.

With TINY_APART in the environment each process but the main one has an --out of its own, as on machines of their own.
"""

import os
import sys
from itertools import pairwise

import torch

from draft_model.core import PRESETS, ModelShape, Preset, TrainSettings

VOCAB_SIZE = 320
VERBS = ("read", "write", "open", "close", "count", "merge", "split", "parse", "render", "send")
SHAPE = ModelShape(2, 32, 64, 2, 2, head_dim=16, vocab_size=VOCAB_SIZE, context_tokens=64)
PRESET = Preset("tiny", SHAPE, TrainSettings(minutes=1.0, batch_tokens=256, warmup_steps=2, seed=3))


def different_source(number: int) -> str:
    """A module that shares no line with the others."""
    name = "".join("abcdefghij"[int(digit)] for digit in f"{number:03d}")
    functions = [f"def {verb}_{name}(value_{name}):\n    return {verb}(value_{name}, self)\n" for verb in VERBS]
    return "\n\n".join(functions)


if __name__ == "__main__":
    PRESETS["tiny"] = PRESET
    from draft_model.__main__ import main

    torch.use_deterministic_algorithms(mode=True)
    apart = f"-{rank}" if "TINY_APART" in os.environ and (rank := os.environ.get("RANK", "0")) != "0" else ""
    arguments = [value + apart if name == "--out" else value for name, value in pairwise(["", *sys.argv[1:]])]
    main(["--threads", "1", *arguments])
