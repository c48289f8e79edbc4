"""Runs SmoothQuant and GPTQ by llmcompressor, as a script in the environment of `make calibration`.

Imports nothing of this project, which is not installed there. The argument names a file with one JSON object, `Job`.
Events go to standard output, a JSON object a line: `{"done": 3, "total": 12}`, `{"warning": ...}`, `{"error": ...}`.
Other output of libraries goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

Tell = Callable[..., None]


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


class Refused(Exception):
    """A model or texts that are not fit for calibration."""


def main() -> int:
    """Do the job; the exit status is 1 when it was refused."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(**event: Any) -> None:  # noqa: ANN401
        lines.write(json.dumps(event) + "\n")
        lines.flush()

    try:
        run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), tell)
    except Refused as error:
        tell(error=str(error))
        return 1
    return 0


def run(job: Job, tell: Tell) -> None:
    """Load, calibrate, save. Raises Refused."""
    # Its progress bars, one for each layer, would hide error messages.
    os.environ |= {"TQDM_DISABLE": "1", "LLM_COMPRESSOR_LOG_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
    import torch
    from llmcompressor import oneshot
    from loguru import logger
    from torch.utils.data import DataLoader

    logger.add(lambda message: tell(warning=message.record["message"]), filter=is_telling)
    torch.manual_seed(0)
    model, tokenizer = load(job["model"])
    rows = encode(tokenizer, job["texts"], min(job["row_tokens"], model.config.max_position_embeddings))
    oneshot(
        model=model,
        processor=tokenizer,
        dataset=DataLoader(rows, batch_size=None),  # type: ignore[arg-type]
        num_calibration_samples=len(rows),
        recipe=recipe(job, model, tell),
        # One pass for each modifier: GPTQ must see the activations as SmoothQuant leaves them.
        pipeline="independent",
    )
    model.save_pretrained(job["out"], save_compressed=True)


def is_telling(record: Any) -> bool:  # noqa: ANN401 - loguru's own type
    """Whether a log record is a warning about the outcome, such as a matrix that GPTQ could not quantise."""
    return bool(record["level"].name == "WARNING" and record["name"].startswith("llmcompressor.modifiers"))


def load(folder: str) -> tuple[Any, Any]:
    """The model and its tokenizer; Refused if this version of transformers lacks the architecture, or at NaN."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        raise Refused(f"transformers does not load {folder}: {str(error).strip().partition(chr(10))[0]}") from error
    broken = next((name for name, values in model.named_parameters() if not bool(torch.isfinite(values).all())), None)
    if broken is not None:
        raise Refused(f"{broken}: a weight is not finite")
    return model.eval(), tokenizer


def encode(tokenizer: Any, texts: list[str], row_tokens: int) -> list[dict[str, Any]]:  # noqa: ANN401
    """Rows of one text each, (1, at most row_tokens) token ids; Refused when all texts are too short."""
    import torch

    rows = []
    for text in texts:
        ids = tokenizer(text)["input_ids"][:row_tokens]
        if len(ids) > 1:
            row = torch.tensor([ids])
            rows.append({"input_ids": row, "attention_mask": torch.ones_like(row)})
    if not rows:
        raise Refused("no text has two tokens or more")
    return rows


def recipe(job: Job, model: Any, tell: Tell) -> list[Any]:  # noqa: ANN401
    """The modifiers in their order; each reports its progress through the model."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    passes = 2 if job["smoothing"] else 1
    # A pass processes each layer and then the output head.
    total, done = passes * (model.config.num_hidden_layers + 1), 0

    def count() -> None:
        nonlocal done
        done += 1
        tell(done=min(done, total), total=total)

    class Smoothing(SmoothQuantModifier):  # type: ignore[misc]
        def on_sequential_epoch_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            super().on_sequential_epoch_end(*args, **kwargs)
            count()

    class Rounding(GPTQModifier):  # type: ignore[misc]
        def on_sequential_epoch_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            super().on_sequential_epoch_end(*args, **kwargs)
            count()

    targets = [rf"re:.*\.{name}$" for name in job["targets"]]
    rounding = Rounding(targets=targets, scheme="W8A8", ignore=["lm_head"])
    return [Smoothing(smoothing_strength=job["smoothing"]), rounding] if job["smoothing"] else [rounding]


if __name__ == "__main__":
    sys.exit(main())
