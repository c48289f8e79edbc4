"""Decode step times in vLLM with dummy weights, by batch size."""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from completion_server.engine.vllm.offline import OfflineEngineError, offline_engine
from draft_model.core.presets import ModelShape
from draft_model.gpu.processes import ROOT, run
from draft_model.gpu.sizes import PROMPT_SHARE, Sizes

INT8_CONFIG = ROOT / "target_model" / "embedded" / "config.json"
"""A configuration of the scheme that `target-model quantize` writes."""


def write_model(shape: ModelShape, out: Path, *, is_int8: bool) -> None:
    """Write a model folder with a `config.json` and nothing else."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if is_int8:
        config["quantization_config"] = json.loads(INT8_CONFIG.read_text(encoding="utf-8"))["quantization_config"]
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")


def measure_steps(name: str, shape: ModelShape, *, is_int8: bool, tiny: bool, folder: Path) -> dict[str, Any]:
    """Time the decode steps of a shape in a new process; return the times with the weights' size."""
    click.echo(f"decode steps of the {name} ...", err=True)
    write_model(shape, folder, is_int8=is_int8)
    output = run([sys.executable, "-m", "draft_model.gpu", "--step", str(folder), *(["--tiny"] if tiny else [])])
    weights = shape.num_matrix_parameters * (1 if is_int8 else 2)
    rest = shape.num_parameters - shape.num_matrix_parameters
    return {
        "matrix_parameters": shape.num_matrix_parameters,
        "scheme": "w8a8" if is_int8 else "bf16",
        "weights_mib": round((weights + 2 * rest) / 2**20),
        "step_ms": json.loads(output.splitlines()[-1]),
    }


def step_ratios(draft: dict[str, float | None], target: dict[str, float | None]) -> dict[str, float | None]:
    """The draft's step over the target's by batch size; None where either was left out."""
    pairs = {size: (draft[size], target[size]) for size in target}
    return {size: round(ours / theirs, 3) if ours and theirs else None for size, (ours, theirs) in pairs.items()}


def max_sequences(num_blocks: int, block_tokens: int, sequence_tokens: int) -> int:
    """The most sequences of `sequence_tokens` that a KV cache holds at once; vLLM takes one block for itself."""
    return (num_blocks - 1) // -(-sequence_tokens // block_tokens)


def time_steps(model: Path, sizes: Sizes) -> dict[str, float | None]:
    """Milliseconds of a decode step by batch size; ClickException when vLLM does not start.

    Both models are timed as a server with a K that may change runs them, with piecewise CUDA graphs.

    None for a batch that the KV cache can't hold: vLLM would preempt sequences, and the time would be no decode step's.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    context = config["max_position_embeddings"]
    prompt_tokens = context // PROMPT_SHARE
    sequence_tokens = prompt_tokens + 1 + sizes.timed_tokens
    settings = {
        "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": context,
        "max_num_seqs": max(sizes.batch_sizes), "enable_prefix_caching": False,
    }  # fmt: skip
    found: dict[str, float | None] = {}
    try:
        with offline_engine(model, settings, speculation_graphs="piecewise") as llm:
            cache = llm.llm_engine.vllm_config.cache_config
            most = max_sequences(cache.num_gpu_blocks, cache.block_size, sequence_tokens)
            timer = _StepTimer(llm, config["vocab_size"], prompt_tokens)
            for size in sizes.batch_sizes:
                found[str(size)] = timer.step_ms(size, sizes.timed_tokens) if size <= most else None
                if size > most:
                    click.echo(
                        f"left out: {size} sequences of {sequence_tokens:,} tokens at once; the KV cache holds {most}, "
                        f"in {cache.num_gpu_blocks:,} blocks of {cache.block_size} tokens",
                        err=True,
                    )
    except OfflineEngineError as error:
        raise click.ClickException(str(error)) from error
    return found


class _StepTimer:
    """Times decode steps of batches with random prompts."""

    def __init__(self, llm: Any, vocab_size: int, prompt_tokens: int) -> None:  # noqa: ANN401 - vLLM's own type
        self._llm = llm
        self._vocab_size = vocab_size
        self._prompt_tokens = prompt_tokens
        self._rng = np.random.default_rng(0)

    def step_ms(self, size: int, num_tokens: int) -> float:
        """Milliseconds of a step: a generation of `num_tokens` more, over those tokens; the median of three."""
        self._generate_s(size, 2)
        pairs = [(self._generate_s(size, 1 + num_tokens), self._generate_s(size, 1)) for _ in range(3)]
        return round(1e3 * median(long - short for long, short in pairs) / num_tokens, 3)

    def _generate_s(self, size: int, num_tokens: int) -> float:
        from vllm import SamplingParams

        prompts = self._rng.integers(3, self._vocab_size, (size, self._prompt_tokens)).tolist()
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return time.perf_counter() - begun
