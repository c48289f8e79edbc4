"""The network: transformers' own Llama, so that what is trained is what is exported and served."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draft_model.presets import Shape

INIT_STD = 0.02
ROPE_THETA = 10_000.0


def make_config(shape: Shape, end_token_id: int = 0) -> LlamaConfig:
    """The Hugging Face configuration of a shape; the end token is the begin token too."""
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=INIT_STD,
        bos_token_id=end_token_id,
        eos_token_id=end_token_id,
        pad_token_id=None,
        use_cache=True,
    )


def make_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model in float32; the projections back into the residual stream start at zero."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(make_config(shape))  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)
    return model


def num_parameters(model: LlamaForCausalLM) -> int:
    """Number of distinct parameters, the tied embedding counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
