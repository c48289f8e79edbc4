"""Model folders as models to measure."""

import warnings
from pathlib import Path

import torch
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from draft_model.errors import PipelineError


def load_model(folder: Path) -> LlamaForCausalLM:
    """A model folder as a float32 model in evaluation mode, INT8 multiplied out; PipelineError when it is not one."""
    if not (folder / "config.json").is_file():
        raise PipelineError(f"{folder} is not a model folder: it has no config.json")
    disable_progress_bar()  # type: ignore[no-untyped-call]  # It loads in a moment, and INT8 weights would draw two bars more.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # INT8 imports deprecated parts of torch.
        model = LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    model.requires_grad_(False)
    return model
