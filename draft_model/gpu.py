"""What training `draft-1b` and decoding with a 13B INT8 target cost on one GPU; no weights or data are needed.

    make ENGINE=cuda .venv-cuda/installed
    .venv-cuda/bin/python -m draft_model.gpu

One GPU of 80 GB, about a quarter of an hour. Every part runs in a process of its own and finds the GPU empty. The last
line is one JSON object:

    train: tokens_per_s and mfu (median behind the first steps), peak_memory_mib (the whole device's)
    target, draft: parameters in the matrices, weights_mib as stored, step_ms by batch size, and their ratio at each;
        null for a batch that is left out, as vLLM's KV cache cannot hold it (why is on standard error)

`--tiny` goes the same way in small shapes on any machine.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import psutil

from completion_server.engine.vllm.offline import OfflineEngineError, offline_engine
from completion_server.prompt.templates import EMBEDDED
from draft_model.core import PRESETS, ModelShape
from draft_model.data.shards import TOKENIZER, DataManifest, DataSettings, save_manifest, shard_paths
from draft_model.models import make_config

CODE_LLAMA_13B = ModelShape(40, 5120, 13_824, 40, 40, head_dim=128, vocab_size=32_016, context_tokens=4096)
SKIPPED_STEPS = 3
"""Training steps that are left out of the figures: the first ones compile kernels and fill the allocator."""
PROMPT_SHARE = 8
"""A prompt takes an eighth of the context: 64 sequences of the target then fill 34 GB of KV cache, 0.82 MB a token."""
WATCHED_EVERY_S = 0.5
ROOT = Path(__file__).resolve().parents[1]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
INT8_CONFIG = ROOT / "target_model" / "embedded" / "config.json"
"""A configuration of the scheme that `target-model quantize` writes."""


@dataclass(frozen=True)
class Sizes:
    """The preset to train and for how long, the target's shape, and the batches to decode."""

    preset: str
    target: ModelShape
    train_minutes: float
    train_steps: int | None
    batch_tokens: int
    block_tokens: int
    batch_sizes: tuple[int, ...]
    timed_tokens: int

    @property
    def draft(self) -> ModelShape:
        """The draft's shape."""
        return PRESETS[self.preset].shape


FULL = Sizes("draft-1b", CODE_LLAMA_13B, 3.0, None, 1 << 18, 1 << 14, (1, 8, 32, 64), 128)
TINY = Sizes(
    "embedded-draft", ModelShape(2, 256, 512, 4, 4, vocab_size=512, context_tokens=256), 0.0, SKIPPED_STEPS + 2, 2048,
    1024, (1, 2), 8,
)  # fmt: skip


def run(command: Sequence[str]) -> tuple[str, float]:
    """Run a process with its messages shown; return its standard output, and the peak of `used_mib` meanwhile.

    Raises ClickException when the process fails.
    """
    output: str | None = None
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        while output is None:
            try:
                output, _ = process.communicate(timeout=WATCHED_EVERY_S)
            except subprocess.TimeoutExpired:
                peak = max(peak, used_mib())
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        raise click.ClickException(f"{' '.join(command[1:4])} ended with {process.returncode}; why is above")
    return output, peak


def ask_driver(field: str) -> str:
    """The driver's answer for the first GPU, "" without one; asking torch would take memory of the GPU."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def used_mib() -> float:
    """MiB in use now: of the GPU by the driver's count, without a GPU resident in this process's children."""
    answer = ask_driver("memory.used")
    if answer:
        return float(answer)
    used = 0
    for child in psutil.Process().children(recursive=True):
        try:
            used += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return used / 2**20


def write_data(sizes: Sizes, out: Path) -> None:
    """Write a data folder as `draft-model data` does, of random tokens: one shard, rows as long as the context."""
    vocab_size, blocks = sizes.draft.vocab_size, 64
    settings = DataSettings(
        blocks * sizes.block_tokens, sizes.block_tokens, (sizes.draft.context_tokens,), blocks_a_shard=blocks
    )
    manifest = DataManifest(settings, EMBEDDED, "random", "", "", vocab_size)
    (out / TOKENIZER).mkdir(parents=True)
    for name in TOKENIZER_FILES:
        (out / TOKENIZER / name).write_bytes((ROOT / "target_model" / "embedded" / name).read_bytes())
    save_manifest(manifest, out)
    rng = np.random.default_rng(0)
    ids, marks = shard_paths(out, 0)
    np.save(ids, rng.integers(0, vocab_size, (blocks, sizes.block_tokens), dtype=np.uint16))
    np.save(marks, rng.integers(0, 256, (blocks, sizes.block_tokens // 8), dtype=np.uint8))


def measure_training(sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Train for some minutes; return figures from the run's own record. ClickException when there are too few steps."""
    write_data(sizes, folder / "data")
    is_timed = sizes.train_steps is None
    budget = ["--minutes", str(sizes.train_minutes)] if is_timed else ["--steps", str(sizes.train_steps)]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
        "-m", "draft_model", "train", "--preset", sizes.preset, "--data", str(folder / "data"),
        "--out", str(folder / "run"), "--batch-tokens", str(sizes.batch_tokens), *budget,
    ]  # fmt: skip
    _, peak_mib = run(command)
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines][SKIPPED_STEPS:]
    if not steps:
        raise click.ClickException(f"no more than {SKIPPED_STEPS} steps were made; give --train-minutes more")
    return {
        "preset": sizes.preset,
        "parameters": sizes.draft.num_parameters,
        "steps": len(steps),
        "batch_tokens": sizes.batch_tokens,
        "block_tokens": sizes.block_tokens,
        "tokens_per_s": round(median(step["tokens_per_s"] for step in steps)),
        "mfu": round(median(step["utilisation"] for step in steps), 4),
        "peak_memory_mib": round(peak_mib),
    }


def write_model(shape: ModelShape, out: Path, *, is_int8: bool) -> None:
    """Write a model folder with a `config.json` and nothing else."""
    config: Any = make_config(shape, end_token_id=2)
    config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
    if is_int8:
        config.quantization_config = json.loads(INT8_CONFIG.read_text(encoding="utf-8"))["quantization_config"]
    config.save_pretrained(str(out))


def measure_steps(name: str, shape: ModelShape, *, is_int8: bool, tiny: bool, folder: Path) -> dict[str, Any]:
    """Time the decode steps of a shape in a new process; return the times with the weights' size."""
    click.echo(f"decode steps of the {name} ...", err=True)
    write_model(shape, folder, is_int8=is_int8)
    output, _ = run([sys.executable, "-m", "draft_model.gpu", "--step", str(folder), *(["--tiny"] if tiny else [])])
    weights = shape.num_matrix_parameters * (1 if is_int8 else 2)
    rest = shape.num_parameters - shape.num_matrix_parameters
    return {
        "matrix_parameters": shape.num_matrix_parameters,
        "scheme": "w8a8" if is_int8 else "bf16",
        "weights_mib": round((weights + 2 * rest) / 2**20),
        "step_ms": json.loads(output.splitlines()[-1]),
    }


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
            rng = np.random.default_rng(0)
            for size in sizes.batch_sizes:
                prompts = rng.integers(3, config["vocab_size"], (size, prompt_tokens)).tolist()
                found[str(size)] = step_ms(llm, prompts, sizes.timed_tokens) if size <= most else None
                if size > most:
                    click.echo(
                        f"left out: {size} sequences of {sequence_tokens:,} tokens at once; the KV cache holds {most}, "
                        f"in {cache.num_gpu_blocks:,} blocks of {cache.block_size} tokens",
                        err=True,
                    )
    except OfflineEngineError as error:
        raise click.ClickException(str(error)) from error
    return found


def step_ms(llm: Any, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:  # noqa: ANN401 - vLLM's own type
    """Milliseconds of a step: a generation of `num_tokens` more, over those tokens; the median of three."""
    from vllm import SamplingParams

    def generate_s(num_tokens: int) -> float:
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return time.perf_counter() - begun

    generate_s(2)
    pairs = [(generate_s(1 + num_tokens), generate_s(1)) for _ in range(3)]
    return round(1e3 * median(long - short for long, short in pairs) / num_tokens, 3)


@click.command(context_settings={"max_content_width": 110})
@click.option("--tiny", is_flag=True, help="Small shapes and a few steps, to try the program itself.")
@click.option("--train-minutes", type=float, help="Of training.  [default: 3]")
@click.option(
    "--block-tokens",
    type=int,
    help="Computed at a time in training; smaller where memory runs out.  [default: 16384]",
)
@click.option("--only", type=click.Choice(["train", "decode"]), help="One half.  [default: both]")
@click.option("--step", "model", type=click.Path(path_type=Path), hidden=True)
def main(
    *, tiny: bool, train_minutes: float | None, block_tokens: int | None, only: str | None, model: Path | None
) -> None:
    """Measure on one GPU: training draft-1b, and the decode steps of a 13B INT8 target and of the draft."""
    sizes = TINY if tiny else FULL
    if model is not None:
        click.echo(json.dumps(time_steps(model, sizes)))
        return
    if train_minutes is not None:
        sizes = replace(sizes, train_minutes=train_minutes)
    if block_tokens is not None:
        sizes = replace(sizes, block_tokens=block_tokens)
    figures: dict[str, Any] = {"device": ask_driver("name") or "cpu", "tiny": tiny}
    with tempfile.TemporaryDirectory(prefix="measure-") as folder:
        if only != "decode":
            figures["train"] = measure_training(sizes, Path(folder))
        if only != "train":
            for name, shape, is_int8 in (("target", sizes.target, True), ("draft", sizes.draft, False)):
                figures[name] = measure_steps(name, shape, is_int8=is_int8, tiny=tiny, folder=Path(folder) / name)
            target, draft = figures["target"]["step_ms"], figures["draft"]["step_ms"]
            figures["draft_to_target"] = {
                size: round(draft[size] / target[size], 3) if draft[size] and target[size] else None for size in target
            }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
