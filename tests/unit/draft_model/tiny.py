"""A corpus and a preset that train in a second; run as a program, the command line with that preset."""

import sys

from draft_model.core import PRESETS, ModelShape, Preset

VOCAB_SIZE = 320
VERBS = ("read", "write", "open", "close", "count", "merge", "split", "parse", "render", "send")
SHAPE = ModelShape(2, 32, 64, 2, 2, head_dim=16, vocab_size=VOCAB_SIZE, context_tokens=64)
PRESET = Preset("tiny", SHAPE, num_tokens=2048, batch_tokens=256, warmup_steps=2, seed=3)


def different_source(number: int) -> str:
    """A module that shares no line with the others."""
    name = "".join("abcdefghij"[int(digit)] for digit in f"{number:03d}")
    functions = [f"def {verb}_{name}(value_{name}):\n    return {verb}(value_{name}, self)\n" for verb in VERBS]
    return "\n\n".join(functions)


if __name__ == "__main__":
    PRESETS["tiny"] = PRESET
    from draft_model.__main__ import main

    main(["--threads", "1", *sys.argv[1:]])
