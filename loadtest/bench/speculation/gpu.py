"""What speculation brings a 13B-sized INT8 target with a 1B-sized draft on a GPU, and at which batch size it ends.

The weights are made up, as time does not hang on them, and so is the acceptance: vLLM's synthetic rejection accepts
drafts at a set rate. Two engines are up, one with the draft and one without, and take turns on prompts of random
tokens; nothing is between them and the benchmark. Not run by us yet: vLLM refuses synthetic acceptance on a CPU.
"""

import asyncio
import json
import math
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loadtest.bench.common.contest import BenchPrompt, Turns
from loadtest.bench.common.figures import report_console
from loadtest.bench.peers.bare_engine import BareEngine
from loadtest.processes.child import StartError, end_on_sigterm
from loadtest.tuning.statistics import MIN_ROUNDS, Estimate, ratio_of_rounds

_VOCABULARY = 32_016
"""Of both, as vLLM wants it: Code Llama's."""
_PROMPT_TOKENS = 128
"""Few, so that the KV cache of the largest batch fits: 0.8 MiB for each token."""

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": _VOCABULARY,
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
    "tie_word_embeddings": True,
}
"""The preset `draft-1b`, 1.0B parameters; written down again, as the packages do not import each other."""


@click.command()
@click.option("--k", type=click.IntRange(1), default=5, show_default=True, help="Draft tokens for each step.")
@click.option(
    "--acceptance",
    type=click.FloatRange(0, 1),
    default=0.82,
    show_default=True,
    help="The chance of each draft token, given that those before it were accepted.",
)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 2, 4, 8, 16, 32, 64),
    show_default=True,
    help="Generations at once; may be repeated.",
)
@click.option("--tokens", type=click.IntRange(8), default=128, show_default=True, help="Of each answer.")
@click.option("--rounds", type=click.IntRange(MIN_ROUNDS), default=6, show_default=True, help="Blocks of each kind.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which prompts, and in which order.")
def main(k: int, acceptance: float, batches: tuple[int, ...], tokens: int, rounds: int, seed: int) -> None:
    """Measure tokens/s with and without a draft at several batch sizes. The last line is a JSON object.

    \b
    Example, in the environment for CUDA, with 80 GiB of GPU memory:
        .venv-cuda/bin/python -m loadtest.bench.speculation.gpu
    """
    end_on_sigterm()
    sizes = sorted(set(batches))
    try:
        rates = asyncio.run(_measure(k, acceptance, sizes, tokens, rounds, seed))
    except StartError as error:
        raise click.ClickException(str(error)) from error
    speedups = {size: ratio_of_rounds(np.array(drafting), np.array(plain)) for size, (drafting, plain) in rates.items()}
    _print(rates, speedups)
    where = crossing({size: each.value for size, each in speedups.items()})
    click.echo(
        json.dumps(
            {
                "k": k,
                "acceptance": acceptance,
                "speedup_by_batch": {str(size): round(each.value, 3) for size, each in speedups.items()},
                "speedup_first_batch": round(speedups[sizes[0]].value, 3),
                "crossover_batch": None if where is None else round(where, 1),
            }
        )
    )


def acceptance_by_position(acceptance: float, k: int) -> list[float]:
    """Return, for each position, the share of drafts that are accepted up to it."""
    return [acceptance**position for position in range(1, k + 1)]


def crossing(speedups: Mapping[int, float]) -> float | None:
    """Return the batch size at which the speed-up falls to 1, on the line between two measured ones.

    Both axes are logarithmic. Returns the smallest size if the speed-up is never above 1, None if it always is.
    """
    sizes = sorted(speedups)
    if speedups[sizes[0]] <= 1:
        return float(sizes[0])
    for low, high in pairwise(sizes):
        above, below = math.log(speedups[low]), math.log(speedups[high])
        if below <= 0:
            return float(low * (high / low) ** (above / (above - below)))
    return None


def engine_args(target: Path, draft: Path | None, k: int, acceptance: float, max_num_seqs: int) -> dict[str, Any]:
    """Return the arguments of vLLM's AsyncEngineArgs for an engine that has half of the GPU."""
    args: dict[str, Any] = {
        "model": str(target),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_model_len": 2048,
        "max_num_seqs": max_num_seqs,
        "gpu_memory_utilization": 0.44,
        "enable_prefix_caching": False,
    }
    if draft is not None:
        args["speculative_config"] = {
            "method": "draft_model",
            "model": str(draft),
            "num_speculative_tokens": k,
            # As the server starts its engine: K may vary, which costs full CUDA graphs (and see `_measure`).
            "num_speculative_tokens_per_batch_size": [[1, max_num_seqs, k]],
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": acceptance_by_position(acceptance, k),
        }
    return args


async def _measure(
    k: int, acceptance: float, sizes: Sequence[int], tokens: int, rounds: int, seed: int
) -> dict[int, tuple[list[float], list[float]]]:
    """Return tokens/s of each round by batch size, with a draft and without."""
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # as the server does where K may vary
    chance, console, turns = random.Random(seed), Console(stderr=True), Turns()
    rates: dict[int, tuple[list[float], list[float]]] = {size: ([], []) for size in sizes}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speculation-gpu-")))
        target, draft = _model(folder / "target", TARGET), _model(folder / "draft", DRAFT)
        engines = []
        for own_draft in (draft, None):
            with console.status("starting with a draft" if own_draft else "starting without a draft"):
                args = engine_args(target, own_draft, k, acceptance, sizes[-1])
                engines.append(await stack.enter_async_context(BareEngine({"engine": {}, "engine_args": args})))
                turns.add(engines[-1].process)
        with Progress(console=console) as progress:
            task = progress.add_task("measuring", total=(rounds + 1) * len(sizes))
            for number in range(rounds + 1):
                for size in sizes:
                    prompts = _prompts(size, tokens, chance)
                    order = chance.sample(range(len(engines)), len(engines))
                    for place in order:
                        await turns.give(engines[place].process)
                        block = await engines[place].run(prompts, size)
                        if number:  # the first round warms up
                            rates[size][place].append(block.tokens_per_s)
                    progress.advance(task)
    return rates


def _model(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a model folder without weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _prompts(count: int, tokens: int, chance: random.Random) -> list[BenchPrompt]:
    """Return prompts that share no beginning."""
    return [
        BenchPrompt("", "", tokens, tuple(chance.choices(range(10, _VOCABULARY), k=_PROMPT_TOKENS)))
        for _ in range(count)
    ]


def _print(rates: Mapping[int, tuple[list[float], list[float]]], speedups: Mapping[int, Estimate]) -> None:
    table = Table(title="tokens/s", title_justify="left")
    for column in ("at once", "with a draft", "without", "speed-up"):
        table.add_column(column, justify="right")
    for size, (drafting, plain) in rates.items():
        ratio = speedups[size]
        span = f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        table.add_row(str(size), f"{np.mean(drafting):.0f}", f"{np.mean(plain):.0f}", span)
    report_console().print(table)


if __name__ == "__main__":
    main()
