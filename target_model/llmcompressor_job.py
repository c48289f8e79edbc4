"""Runs SmoothQuant and GPTQ by llmcompressor, as a script in the environment of `make calibration`.

Imports nothing of this project, which is not installed there. The argument names a file with one JSON object, `Job`.
llmcompressor's progress bars and warnings, and the reason of a refusal, go to standard error.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, TypedDict


class Job(TypedDict):
    """The parameters of the script."""

    model: str
    """Folder of the model."""
    out: str
    """Folder for weights and configuration; exists."""
    texts: list[str]
    row_tokens: int
    """Most tokens that are used of a text."""
    smoothing: float
    """SmoothQuant's strength, 0 to 1; 0 means GPTQ alone."""
    targets: list[str]
    """The layers to quantise: names at the end of a module's path."""


def main() -> None:
    """Load, calibrate, save; ends the process with a message when the model or the texts are not fit."""
    os.environ |= {"LLM_COMPRESSOR_LOG_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
    job: Job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import torch
    from llmcompressor import oneshot
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    model, tokenizer = load(job["model"])
    rows = encode(tokenizer, job["texts"], min(job["row_tokens"], model.config.max_position_embeddings))
    oneshot(
        model=model,
        processor=tokenizer,
        dataset=DataLoader(rows, batch_size=None),  # type: ignore[arg-type]
        num_calibration_samples=len(rows),
        recipe=recipe(job),
        # One pass for each modifier: GPTQ must see the activations as SmoothQuant leaves them.
        pipeline="independent",
    )
    model.save_pretrained(job["out"], save_compressed=True)


def load(folder: str) -> tuple[Any, Any]:
    """The model and its tokenizer; ends the process if transformers lacks the architecture, or at NaN."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        sys.exit(f"transformers does not load {folder}: {str(error).strip().partition(chr(10))[0]}")
    broken = next((name for name, values in model.named_parameters() if not bool(torch.isfinite(values).all())), None)
    if broken is not None:
        sys.exit(f"{broken}: a weight is not finite")
    return model.eval(), tokenizer


def encode(tokenizer: Any, texts: list[str], row_tokens: int) -> list[dict[str, Any]]:  # noqa: ANN401
    """Rows of one text each, (1, at most row_tokens) token ids; ends the process when all are too short."""
    import torch

    rows = []
    for text in texts:
        ids = tokenizer(text)["input_ids"][:row_tokens]
        if len(ids) > 1:
            row = torch.tensor([ids])
            rows.append({"input_ids": row, "attention_mask": torch.ones_like(row)})
    if not rows:
        sys.exit("no text has two tokens or more")
    return rows


def recipe(job: Job) -> list[Any]:
    """The modifiers in their order."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    targets = [rf"re:.*\.{name}$" for name in job["targets"]]
    rounding = GPTQModifier(targets=targets, scheme="W8A8", ignore=["lm_head"])
    smoothing = [SmoothQuantModifier(smoothing_strength=job["smoothing"])] if job["smoothing"] else []
    return [*smoothing, rounding]


if __name__ == "__main__":
    main()
