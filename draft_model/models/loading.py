"""Loads model folders, to measure them and to learn from them."""

import json
import warnings
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from draft_model.core.errors import PipelineError


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder; PipelineError when it can't be read."""
    path = folder / "config.json"
    if not path.is_file():
        raise PipelineError(f"{folder} is not a model folder: it has no config.json")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} can't be read: {error}") from error
    return config


def check_goes_with(draft: Path, target: Path) -> None:
    """Raise PipelineError when vLLM refuses to serve a draft with a target because their embeddings differ in size."""
    ours, theirs = (read_config(folder).get("vocab_size") for folder in (draft, target))
    if ours != theirs:
        raise PipelineError(
            f"{draft} has a vocab_size of {ours}, {target} one of {theirs}: vLLM serves the two together only with the "
            "same; train the draft with --teacher or --start-from"
        )


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model folder of any family in evaluation mode, INT8 dequantised; PipelineError when it can't be loaded."""
    quantised = (read_config(folder).get("quantization_config") or {}).get("quant_method")
    disable_progress_bar()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), redirect_stderr(StringIO()):  # INT8 weights draw progress bars that have no switch.
        warnings.simplefilter("ignore")  # INT8 imports deprecated parts of torch.
        # Dequantised now, not at the first pass: until then the layers are int8, and no draft can start from them.
        how = CompressedTensorsConfig(dequantize=True) if quantised == "compressed-tensors" else None
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, **({"quantization_config": how} if how else {})
            )
        except (OSError, ValueError) as error:  # A family that transformers does not know, or weights that are missing.
            raise PipelineError(f"{folder} can't be loaded: {error}") from error
    model.requires_grad_(False)
    return model
