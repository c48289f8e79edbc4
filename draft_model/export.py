"""A trained model as a Hugging Face folder: bfloat16 weights, tokenizer, generation defaults and the card."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from draft_model.files import folder_atomically
from draft_model.model import END_TOKEN_ID, make_config
from draft_model.presets import Shape


def to_bfloat16(model: LlamaForCausalLM, shape: Shape) -> LlamaForCausalLM:
    """A bfloat16 copy of a trained model: the weights that are exported, and so the ones to evaluate."""
    copy = LlamaForCausalLM(make_config(shape))  # type: ignore[no-untyped-call]
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16)  # type: ignore[arg-type]
    copy.requires_grad_(False)
    return copy


def as_evaluated(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The same weights, rounding kept, in float32, which is how figures are measured."""
    model.to(torch.float32)  # type: ignore[arg-type]
    return model


def export_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, card: str, out: Path) -> None:
    """Write `out` whole or not at all, in place of what was there; PipelineError when the disk refuses."""
    model.generation_config.bos_token_id = END_TOKEN_ID
    model.generation_config.eos_token_id = END_TOKEN_ID
    with folder_atomically(out) as folder:
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
        (folder / "README.md").write_text(card, encoding="utf-8")
        for path in folder.iterdir():
            path.chmod(0o644)
