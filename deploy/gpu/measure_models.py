"""What training `draft-1b` and decoding with a 13B INT8 target cost on one GPU; no weights or data are needed.

    make ENGINE=cuda .venv-cuda/installed
    .venv-cuda/bin/python deploy/gpu/measure_models.py

One GPU of 80 GB, about a quarter of an hour. Trains on random tokens at real size, then times decode steps in vLLM
with dummy weights. Every part runs in a process of its own and finds the GPU empty. The last line is one JSON object:

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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import psutil

from draft_model.core.presets import PRESETS, Shape
from draft_model.data.shards import MANIFEST, TOKENIZER, DataManifest, DataSettings, shard_paths
from draft_model.data.templates import EMBEDDED
from target_model.quantisation.scheme import quantization_config

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
CODE_LLAMA_13B = Shape(40, 5120, 13_824, 40, 40, head_dim=128, vocab_size=32_016, context_tokens=4096)
SKIPPED_STEPS = 3
"""Of training: the first ones compile kernels and fill the allocator."""
PROMPT_SHARE = 8
"""A prompt takes an eighth of the context: 64 sequences of the target then fill 34 GB of KV cache, 0.82 MB a token."""


@dataclass(frozen=True)
class Plan:
    """What is measured, how large."""

    preset: str
    target: Shape
    train_minutes: float
    train_steps: int | None
    batch_tokens: int
    block_tokens: int
    batch_sizes: tuple[int, ...]
    timed_tokens: int

    @property
    def draft(self) -> Shape:
        """The draft's shape."""
        return PRESETS[self.preset].shape


FULL = Plan("draft-1b", CODE_LLAMA_13B, 3.0, None, 1 << 18, 1 << 14, (1, 8, 32, 64), 128)
TINY = Plan(
    "embedded-draft", Shape(2, 256, 512, 4, 4, vocab_size=512, context_tokens=256), 0.0, SKIPPED_STEPS + 2, 2048, 1024,
    (1, 2), 8,
)  # fmt: skip


@click.command(context_settings={"max_content_width": 110})
@click.option("--tiny", is_flag=True, help="Small shapes and a few steps, to try the script itself.")
@click.option("--train-minutes", type=float, default=None, help="Of training.  [default: 3]")
@click.option(
    "--block-tokens",
    type=int,
    default=None,
    help="Computed at a time in training; smaller where memory runs out.  [default: 16384]",
)
@click.option("--only", type=click.Choice(["train", "decode"]), default=None, help="One half.  [default: both]")
@click.option("--step", "model", type=click.Path(path_type=Path), default=None, hidden=True)
def main(
    *, tiny: bool, train_minutes: float | None, block_tokens: int | None, only: str | None, model: Path | None
) -> None:
    """Measure on one GPU: training draft-1b, and the decode steps of a 13B INT8 target and of the draft."""
    plan = TINY if tiny else FULL
    if model is not None:
        click.echo(json.dumps(time_steps(model, plan)))
        return
    given = {"train_minutes": train_minutes, "block_tokens": block_tokens}
    plan = Plan(**{**vars(plan), **{name: value for name, value in given.items() if value is not None}})
    figures: dict[str, Any] = {"device": device_name(), "tiny": tiny}
    with tempfile.TemporaryDirectory(prefix="measure-") as folder:
        if only != "decode":
            figures["train"] = measure_training(plan, Path(folder))
        if only != "train":
            for name, shape, is_int8 in (("target", plan.target, True), ("draft", plan.draft, False)):
                figures[name] = measure_steps(name, shape, is_int8=is_int8, tiny=tiny, folder=Path(folder) / name)
            figures["draft_to_target"] = ratios(figures["draft"]["step_ms"], figures["target"]["step_ms"])
    click.echo(json.dumps(figures))


def device_name() -> str:
    """The GPU's name, or "cpu"."""
    return ask_driver("name") or "cpu"


def ask_driver(what: str) -> str:
    """What the driver says of the first GPU, "" without one; torch would take memory to answer."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write_data(plan: Plan, out: Path) -> None:
    """A data folder as `draft-model data` writes it, of random tokens: one shard, rows as long as the context."""
    vocab_size, blocks = plan.draft.vocab_size, 64
    settings = DataSettings(
        blocks * plan.block_tokens, plan.block_tokens, (plan.draft.context_tokens,), blocks_a_shard=blocks
    )
    manifest = DataManifest(settings, EMBEDDED, "random", "", "", vocab_size)
    (out / TOKENIZER).mkdir(parents=True)
    for name in TOKENIZER_FILES:
        (out / TOKENIZER / name).write_bytes((ROOT / "target_model" / "embedded" / name).read_bytes())
    (out / MANIFEST).write_text(json.dumps(asdict(manifest)), encoding="utf-8")
    rng = np.random.default_rng(0)
    ids, marks = shard_paths(out, 0)
    np.save(ids, rng.integers(0, vocab_size, (blocks, plan.block_tokens), dtype=np.uint16))
    np.save(marks, rng.integers(0, 256, (blocks, plan.block_tokens // 8), dtype=np.uint8))


def measure_training(plan: Plan, folder: Path) -> dict[str, Any]:
    """Train for some minutes under torchrun, as on a fleet; figures from the run's own record."""
    write_data(plan, folder / "data")
    budget = ["--minutes", str(plan.train_minutes)] if plan.train_steps is None else ["--steps", str(plan.train_steps)]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
        "-m", "draft_model", "train", "--preset", plan.preset, "--data", str(folder / "data"),
        "--out", str(folder / "run"), "--batch-tokens", str(plan.batch_tokens), *budget,
    ]  # fmt: skip
    with peak_memory() as peak:
        run(command)
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines][SKIPPED_STEPS:]
    if not steps:
        raise click.ClickException(f"no more than {SKIPPED_STEPS} steps were made; give --train-minutes more")
    return {
        "preset": plan.preset,
        "parameters": plan.draft.num_parameters,
        "steps": len(steps),
        "batch_tokens": plan.batch_tokens,
        "block_tokens": plan.block_tokens,
        "tokens_per_s": round(median(step["tokens_per_s"] for step in steps)),
        "mfu": round(median(step["utilisation"] for step in steps), 4),
        "peak_memory_mib": round(peak()),
    }


@contextmanager
def peak_memory(every_s: float = 0.5) -> Iterator[Callable[[], float]]:
    """Watch memory until the block ends; yields what returns the peak in MiB: of the GPU, else of child processes."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            peak[0] = max(peak[0], used_mib())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: peak[0]
    finally:
        ended.set()
        thread.join()


def used_mib() -> float:
    """Memory in use now: by the driver's count where there is a GPU, else resident in this process's children."""
    told = ask_driver("memory.used")
    if told:
        return float(told)
    used = 0
    for child in psutil.Process().children(recursive=True):
        try:
            used += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return used / 2**20


def write_model(shape: Shape, out: Path, *, is_int8: bool) -> None:
    """A folder with a `config.json` and nothing else: vLLM makes the weights up."""
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
    out.mkdir(parents=True)
    quantised = {"quantization_config": quantization_config()} if is_int8 else {}
    (out / "config.json").write_text(json.dumps(config | quantised), encoding="utf-8")


def measure_steps(name: str, shape: Shape, *, is_int8: bool, tiny: bool, folder: Path) -> dict[str, Any]:
    """Decode step times of a shape, in a new process."""
    click.echo(f"decode steps of the {name} ...", err=True)
    write_model(shape, folder, is_int8=is_int8)
    told = run([sys.executable, str(Path(__file__).resolve()), "--step", str(folder), *(["--tiny"] if tiny else [])])
    weights = shape.num_matrix_parameters * (1 if is_int8 else 2)
    rest = shape.num_parameters - shape.num_matrix_parameters
    return {
        "matrix_parameters": shape.num_matrix_parameters,
        "scheme": "w8a8" if is_int8 else "bf16",
        "weights_mib": round((weights + 2 * rest) / 2**20),
        "step_ms": json.loads(told.splitlines()[-1]),
    }


def run(command: Sequence[str]) -> str:
    """Run a part, its messages shown; its standard output. ClickException when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command[1:4])} ended with {done.returncode}; why is above")
    return done.stdout


def ratios(draft: dict[str, float | None], target: dict[str, float | None]) -> dict[str, float | None]:
    """The draft's step over the target's by batch size; None where either was left out."""
    pairs = {size: (draft[size], target[size]) for size in target}
    return {size: round(ours / theirs, 3) if ours and theirs else None for size, (ours, theirs) in pairs.items()}


def num_seats(num_blocks: int, block_tokens: int, sequence_tokens: int) -> int:
    """How many sequences of so many tokens a KV cache holds at once; one block is vLLM's own."""
    return (num_blocks - 1) // -(-sequence_tokens // block_tokens)


def time_steps(model: Path, plan: Plan) -> dict[str, float | None]:
    """Milliseconds of a decode step by batch size: a long generation less a short one, over the tokens between.

    None for a batch that the KV cache cannot hold: vLLM would preempt sequences and the time be no decode step's.
    """
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    shape = json.loads((model / "config.json").read_text(encoding="utf-8"))
    context = shape["max_position_embeddings"]
    llm = LLM(
        model=str(model), load_format="dummy", skip_tokenizer_init=True, max_model_len=context,
        max_num_seqs=max(plan.batch_sizes), enable_prefix_caching=False, enforce_eager=current_platform.is_cpu(),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    prompt_tokens = context // PROMPT_SHARE
    sequence_tokens = prompt_tokens + 1 + plan.timed_tokens
    cache = llm.llm_engine.vllm_config.cache_config
    seats = num_seats(cache.num_gpu_blocks, cache.block_size, sequence_tokens)

    def took_s(size: int, num_tokens: int) -> float:
        prompts = rng.integers(3, shape["vocab_size"], (size, prompt_tokens)).tolist()
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return time.perf_counter() - begun

    found: dict[str, float | None] = {}
    for size in plan.batch_sizes:
        if size > seats:
            found[str(size)] = None
            click.echo(
                f"left out: {size} sequences of {sequence_tokens:,} tokens at once; the KV cache holds {seats}, in "
                f"{cache.num_gpu_blocks:,} blocks of {cache.block_size} tokens",
                err=True,
            )
            continue
        took_s(size, 2)
        pairs = [(took_s(size, 1 + plan.timed_tokens), took_s(size, 1)) for _ in range(3)]
        found[str(size)] = round(1e3 * median(long - short for long, short in pairs) / plan.timed_tokens, 3)
    return found


if __name__ == "__main__":
    main()
