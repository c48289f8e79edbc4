"""The models that a GPU is measured with: a 13B-sized INT8 target and a 1B-sized draft, without weights.

The time of a step does not depend on the weights, so vLLM makes them up (`load_format=dummy`). The acceptance is made
up, too: vLLM's synthetic rejection accepts drafts at a set rate. The text of such models means nothing, and the
server's text rules end many answers early; prompts, queueing and steps are real.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from loadtest.bench.runner.benchmark import write_text

VOCABULARY = 32_016
"""Code Llama's; of both, because a draft needs its target's vocabulary."""
DRAFT_CONTEXT = 4096
"""A sequence beyond it would get no drafts, nor would the others in its steps."""
_ACCEPTANCE = 0.82
_WORKER_EXTENSION = "completion_server.engine.vllm.drafts.worker.WorkerExtension"
"""As in the server's engine; it makes K = 0 cheap on the older runner."""

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
_INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
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
                "weights": _INT8 | {"strategy": "channel", "dynamic": False},
                "input_activations": _INT8 | {"strategy": "token", "dynamic": True},
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
_TINY_TARGET = TARGET | _SMALL | {"num_hidden_layers": 2, "head_dim": 64}
_TINY_DRAFT = DRAFT | _SMALL | {"num_hidden_layers": 1, "head_dim": 64}

_TOKENIZER = Path("target_model/embedded")


def write_models(folder: Path, *, is_tiny: bool) -> None:
    """Write the folders `target` and `draft`, without weights, with the embedded tokenizer and its vocabulary."""
    served = {"vocab_size": json.loads((_TOKENIZER / "config.json").read_text(encoding="utf-8"))["vocab_size"]}
    models = {"target": _TINY_TARGET, "draft": _TINY_DRAFT} if is_tiny else {"target": TARGET, "draft": DRAFT}
    for name, config in models.items():
        write_text(folder / name / "config.json", json.dumps(config | served))
        for each in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(_TOKENIZER / each, folder / name / each)


def target_settings(folder: Path, max_num_seqs: int, *, is_tiny: bool = False) -> list[str]:
    """Return the settings of a server of the target in `folder`."""
    return [
        f"engine.model={folder / 'target'}",
        f"engine.max_model_len={1024 if is_tiny else DRAFT_CONTEXT}",
        f"engine.max_num_seqs={max_num_seqs}",
        "speculation.mode=fixed",
        f"scheduling.max_slots={max_num_seqs}",
        "engine.vllm.load_format=dummy",
    ]


def draft_settings(folder: Path, max_num_seqs: int, k: int, *, is_tiny: bool = False) -> list[str]:
    """Return the settings with which this server drafts, too. A CPU has no synthetic acceptance."""
    drafts: dict[str, Any] = {"method": "draft_model", "model": str(folder / "draft"), "num_speculative_tokens": k}
    drafts["num_speculative_tokens_per_batch_size"] = [[1, max_num_seqs, k]]
    if not is_tiny:
        rates = [_ACCEPTANCE**position for position in range(1, k + 1)]  # of the drafts up to each position
        drafts |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    return [
        f"engine.draft_model={folder / 'draft'}",
        f"engine.num_speculative_tokens={k}",
        f"engine.vllm.worker_extension_cls={_WORKER_EXTENSION}",
        *(f"engine.vllm.speculative_config.{key}={json.dumps(value)}" for key, value in drafts.items()),
    ]


def session_settings(folder: Path, max_num_seqs: int = 128, *, is_tiny: bool = False) -> list[str]:
    """Return the settings of the server that is searched, for models in `folder`."""
    return [
        *target_settings(folder, max_num_seqs, is_tiny=is_tiny),
        *draft_settings(folder, max_num_seqs, 5, is_tiny=is_tiny),
    ]
