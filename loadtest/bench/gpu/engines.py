"""The engines that a GPU is measured with: a 13B-sized INT8 target and a 1B-sized draft, without weights.

The time of a step does not depend on the weights, so vLLM makes them up (`load_format=dummy`).
"""

import json
import random
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.bench.peers.bare_engine import BareEngine
from loadtest.bench.runner.benchmark import write_text
from loadtest.bench.runner.loops import BenchPrompt

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
WORKER_EXTENSION = "completion_server.engine.vllm.drafts.worker.WorkerExtension"
"""As in the server's engine; it makes K = 0 cheap on the older runner."""
SCHEDULE = "num_speculative_tokens_per_batch_size"

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


@dataclass(frozen=True, slots=True)
class Trial:
    """What every part gets."""

    folder: Path
    """For models; empty at first."""
    config: Path
    overrides: tuple[str, ...]
    is_tiny: bool
    console: Console


@dataclass(frozen=True, slots=True)
class EngineVariant:
    """An engine to measure."""

    name: str
    args: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)
    """Variables of this engine alone."""
    live_ks: tuple[int, ...] = ()
    """The Ks to measure on an engine whose K changes; empty for an engine whose K is constant."""


def engine_args(target: Path, *, is_tiny: bool, gpu_share: float, **own: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the arguments of an engine on a model without weights; a tiny one is for a CPU."""
    args: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "generation_config": "vllm"}
    if is_tiny:
        args["enforce_eager"] = True
    else:
        args |= {"performance_mode": "interactivity", "gpu_memory_utilization": gpu_share}
    return args | {"enable_prefix_caching": False, "model": str(target), **own}


def draft_args(draft: Path, k: int, acceptance: float, *, is_tiny: bool) -> dict[str, Any]:
    """Return vLLM's speculative_config for a draft model, with synthetic acceptance on a GPU."""
    args: dict[str, Any] = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": k}
    if not is_tiny:
        rates = acceptance_by_position(acceptance, k)
        args |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    return args


def acceptance_by_position(acceptance: float, k: int) -> list[float]:
    """Return, for each position, the share of drafts that are accepted up to it."""
    return [acceptance**position for position in range(1, k + 1)]


def write_models(folder: Path, *, is_tiny: bool, is_served: bool = False) -> None:
    """Write the folders `target` and `draft`, without weights.

    Models that are `is_served` by a server have the embedded tokenizer and its vocabulary.
    """
    served = {"vocab_size": json.loads((_TOKENIZER / "config.json").read_text(encoding="utf-8"))["vocab_size"]}
    models = {"target": _TINY_TARGET, "draft": _TINY_DRAFT} if is_tiny else {"target": TARGET, "draft": DRAFT}
    for name, config in models.items():
        write_text(folder / name / "config.json", json.dumps(config | (served if is_served else {})))
        for each in ("tokenizer.json", "tokenizer_config.json") if is_served else ():
            shutil.copy(_TOKENIZER / each, folder / name / each)


def ask_driver(field: str) -> str:
    """Return a field of the first GPU by nvidia-smi, "" without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def started(way: EngineVariant, trial: Trial) -> BareEngine:
    """Return the engine, which is loaded."""
    with trial.console.status(f"starting: {way.name}"):
        return BareEngine({"engine": {}, "engine_args": way.args}, env=way.env, changes_k=bool(way.live_ks))


def random_prompts(count: int, prompt_tokens: int, max_tokens: int, chance: random.Random) -> list[BenchPrompt]:
    """Return prompts that share no beginning."""
    return [
        BenchPrompt("", "", max_tokens, tuple(chance.choices(range(10, VOCABULARY), k=prompt_tokens)))
        for _ in range(count)
    ]
