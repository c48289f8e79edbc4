"""A model of two matrices."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "model.embed_tokens.weight": torch.randn(12, 8, generator=generator).to(torch.bfloat16),
        "model.norm.weight": torch.ones(8, dtype=torch.bfloat16),
        "lm_head.weight": torch.randn(12, 8, generator=generator).to(torch.bfloat16),
        "model.layers.0.self_attn.q_proj.weight": torch.randn(8, 8, generator=generator).to(torch.bfloat16),
        "model.layers.0.mlp.down_proj.weight": torch.randn(8, 16, generator=generator).to(torch.bfloat16),
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "tokenizer.json").write_text("{}")
    return folder
