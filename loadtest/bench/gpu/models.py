"""The models that a GPU is measured with: a 13B-sized INT8 target and a 1B-sized draft, without weights.

The time of a step does not depend on the weights, so vLLM makes them up (`load_format=dummy`).
"""

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.bench.runner.closed_loop import BenchPrompt

VOCABULARY = 32_016
"""Code Llama's; of both, because a draft needs its target's vocabulary."""

DRAFT_CONTEXT = 4096
"""A sequence beyond it would get no drafts, nor would the others in its steps."""

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "max_position_embeddings": 16_384,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
    "bos_token_id": None,
    "eos_token_id": None,  # an answer is as long as it is asked for
}
TARGET: dict[str, Any] = _LLAMA | {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
                "input_activations": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "token",
                    "dynamic": True,
                },
            }
        },
    },
}
"""Code Llama 13B's sizes; W8A8, weights by channel, activations by token."""
DRAFT: dict[str, Any] = _LLAMA | {
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": DRAFT_CONTEXT,
    "tie_word_embeddings": True,
}
"""The preset `draft-1b`, 1.0B parameters; written down again, as the packages do not import each other."""

_SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
TINY_TARGET = TARGET | _SMALL | {"num_hidden_layers": 2, "head_dim": 64}
TINY_DRAFT = DRAFT | _SMALL | {"num_hidden_layers": 1, "head_dim": 64}

_TOKENIZER = Path("target_model/embedded")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a model folder without weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_served_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a model folder that a server can serve: with the embedded tokenizer, and that one's vocabulary."""
    embedded = json.loads((_TOKENIZER / "config.json").read_text(encoding="utf-8"))
    write_model(folder, {**config, "vocab_size": embedded["vocab_size"]})
    for name in _TOKENIZER_FILES:
        shutil.copy(_TOKENIZER / name, folder / name)
    return folder


def random_prompts(count: int, prompt_tokens: int, max_tokens: int, chance: random.Random) -> list[BenchPrompt]:
    """Return prompts that share no beginning."""
    return [
        BenchPrompt("", "", max_tokens, tuple(chance.choices(range(10, VOCABULARY), k=prompt_tokens)))
        for _ in range(count)
    ]
