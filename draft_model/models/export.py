"""Exports trained weights as a Hugging Face folder: bfloat16, tokenizer, generation defaults and the card."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from draft_model.core.files import replacing_folder
from draft_model.core.presets import ModelShape
from draft_model.models.network import make_config

CONFIG = "config.json"
"""The file that marks a model folder."""


def export_model(
    weights: Mapping[str, Tensor], shape: ModelShape, tokenizer: PreTrainedTokenizerFast, card: str, out: Path
) -> None:
    """Write the model folder `out` whole or not at all, replacing an old one; PipelineError when the disk refuses."""
    end = tokenizer.convert_tokens_to_ids(str(tokenizer.eos_token))
    model = LlamaForCausalLM(make_config(shape, int(end)))  # type: ignore[no-untyped-call, arg-type]
    model.load_state_dict(dict(weights))
    model.to(torch.bfloat16)  # type: ignore[arg-type]
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = end
    with replacing_folder(out, CONFIG) as folder:
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
        (folder / "README.md").write_text(card, encoding="utf-8")
        for path in folder.iterdir():
            path.chmod(0o644)


def rewrite_card(model: Path, card: str, out: Path) -> None:
    """Copy a model folder to `out` with another card, whole or not at all; PipelineError when the disk refuses."""
    with replacing_folder(out, CONFIG) as folder:
        shutil.copytree(model, folder, dirs_exist_ok=True)
        (folder / "README.md").write_text(card, encoding="utf-8")
