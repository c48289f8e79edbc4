"""Measures models in vLLM in the same way: speed, memory, the loss of given text, completions of tasks.

The figures of several models stand side by side, as Markdown and JSON.
"""

import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from completion_server.engine.vllm.offline import OfflineEngineError, offline_engine
from target_model.core import TargetError
from target_model.quantise import weight_files
from target_model.sandbox import Limits
from target_model.tasks import (
    EvaluationPrompts,
    Mean,
    Score,
    Task,
    build_prompts,
    load_builder,
    mean_per_unit,
    only_function,
    only_line,
    score,
)

MAX_SEQS = 32
TIMED_RUNS = 9
TIMED_TOKENS = 64
ROW_TOKENS = 512
LINE_TOKENS = 48
FUNCTION_TOKENS = 256
_MEMORY_COMMAND = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
_NOTE = (
    "In brackets: 95% intervals, of shares Wilson's as if other problems had been drawn, of losses as if other files "
    "had; the difference is taken file by file."
)


def gpu_memory_bytes() -> int:
    """Return the memory in use on all GPUs, whoever uses it; TargetError if the driver does not answer.

    The processes' resident memory is the host's, and has nothing of what lies on a GPU.
    """
    try:
        done = subprocess.run(_MEMORY_COMMAND, capture_output=True, text=True, check=True)
        return sum(int(line) for line in done.stdout.split()) << 20
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise TargetError(f"nvidia-smi does not tell the GPU's memory: {error}") from error


def process_memory_bytes() -> int:
    """Return the resident memory of this process's children."""
    found = 0
    for child in psutil.Process().children(recursive=True):
        try:
            found += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found


@dataclass(frozen=True)
class Speed:
    """TTFT of one prompt at a time (median), and tokens a second of one sequence and of `MAX_SEQS` together."""

    ttft_ms: float
    tokens_per_s: float
    tokens_per_s_together: float


class ServedModel:
    """A model in a running vLLM."""

    def __init__(self, llm: Any) -> None:  # noqa: ANN401 - vLLM's own type, imported late
        self._llm = llm

    def complete(self, prompts: EvaluationPrompts, max_tokens: int) -> list[str]:
        """Greedy completions as text."""
        outputs = self._generate(prompts.token_ids, max_tokens, use_tqdm=True, stop_token_ids=prompts.stops)
        return [output.outputs[0].text for output in outputs]

    def losses(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Nats of every row, summed over its tokens behind the first."""
        outputs = self._generate(rows, 1, use_tqdm=True, prompt_logprobs=0)
        return [
            -sum(options[token].logprob for token, options in zip(row[1:], output.prompt_logprobs[1:], strict=True))
            for row, output in zip(rows, outputs, strict=True)
        ]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without markers."""
        ids: list[int] = self._llm.get_tokenizer().encode(text, add_special_tokens=False, verbose=False)
        return ids

    def opening(self, marker: str) -> list[int]:
        """The token before a file's text: the family's marker, else the token that begins or ends every text."""
        tokenizer = self._llm.get_tokenizer()
        begins = (marker and tokenizer.convert_tokens_to_ids(marker), tokenizer.bos_token_id, tokenizer.eos_token_id)
        return [next(int(token) for token in begins if isinstance(token, int))]

    def time(self, prompts: Sequence[Sequence[int]]) -> Speed:
        """Measure the speed on some prompts, with completions of a fixed length."""
        some = [prompts[number % len(prompts)] for number in range(MAX_SEQS)]
        self._timed(some, 2)
        first = [self._timed([prompt], 1) for prompt in some[:TIMED_RUNS]]
        alone = [self._timed([prompt], TIMED_TOKENS) - took for prompt, took in zip(some, first, strict=False)]
        together_s = self._timed(some, TIMED_TOKENS)
        return Speed(
            1e3 * median(first), (TIMED_TOKENS - 1) / max(1e-9, median(alone)), MAX_SEQS * TIMED_TOKENS / together_s
        )

    def memory_bytes(self) -> int:
        """Memory of the engine with the KV cache: of the GPUs, on a CPU of the processes."""
        from vllm.platforms import current_platform

        return process_memory_bytes() if current_platform.is_cpu() else gpu_memory_bytes()

    def _timed(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        begun = time.perf_counter()
        self._generate(prompts, max_tokens, ignore_eos=True)
        return time.perf_counter() - begun

    def _generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, *, use_tqdm: bool = False,
        **more: Any,  # noqa: ANN401
    ) -> list[Any]:  # fmt: skip
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **more)
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs: list[Any] = self._llm.generate(requests, params, use_tqdm=use_tqdm)
        return outputs


@contextmanager
def serving(model: Path, options: Mapping[str, Any] | None = None) -> Iterator[ServedModel]:
    """Start vLLM on a model folder; stop it at the end. No prefix cache: no run profits from another.

    `options` are vLLM's own settings, such as `tensor_parallel_size`. Raises TargetError when it does not start,
    dies later, or `options` has a setting that is fixed here.
    """
    fixed = {"max_num_seqs": MAX_SEQS, "enable_prefix_caching": False}
    try:
        with offline_engine(model, fixed, options) as llm:
            yield ServedModel(llm)
    except OfflineEngineError as error:
        raise TargetError(str(error)) from error


@dataclass(frozen=True)
class TargetFigures:
    """The figures of one model; None for those without material to measure on."""

    name: str
    weight_bytes: int
    memory_bytes: int
    speed: Speed
    loss: Mean | None
    """Nats a token of held-out code."""
    loss_more: Mean | None
    """The loss less the first model's, text by text; None for the first, and for another tokenizer."""
    bits_per_byte: float | None
    functions: Score | None
    lines: Score | None


def render(found: Sequence[TargetFigures]) -> str:
    """All models side by side, in Markdown."""
    rows: list[tuple[str, Callable[[TargetFigures], str]]] = [
        ("weights, MiB", lambda one: f"{one.weight_bytes / 2**20:.1f}"),
        ("memory of the engine, MiB", lambda one: f"{one.memory_bytes / 2**20:.0f}"),
        ("TTFT alone, ms", lambda one: f"{one.speed.ttft_ms:.1f}"),
        ("tokens/s alone", lambda one: f"{one.speed.tokens_per_s:.0f}"),
        ("tokens/s together", lambda one: f"{one.speed.tokens_per_s_together:.0f}"),
        ("held-out loss, nats a token", lambda one: str(one.loss or "-")),
        ("more than the first model's", lambda one: str(one.loss_more or "-")),
        ("held-out bits per byte", lambda one: "-" if one.bits_per_byte is None else f"{one.bits_per_byte:.4f}"),
        ("HumanEval pass@1", lambda one: str(one.functions.passed) if one.functions else "-"),
        ("single line, exact", lambda one: str(one.lines.exact) if one.lines else "-"),
        ("single line, pass@1", lambda one: str(one.lines.passed) if one.lines else "-"),
    ]
    head = f"| figure | {' | '.join(one.name for one in found)} |"
    lines = [f"| {name} | {' | '.join(tell(one) for one in found)} |" for name, tell in rows]
    return "\n".join([head, "| --- |" + " --- |" * len(found), *lines, "", _NOTE, ""])


def to_json(found: Sequence[TargetFigures]) -> str:
    """All models as JSON."""
    return json.dumps([asdict(one) for one in found], indent=1) + "\n"


@dataclass(frozen=True)
class Material:
    """The tasks and texts to measure on; each part may be missing."""

    functions: Sequence[Task] = ()
    """HumanEval: tasks with a missing function."""
    lines: Sequence[Task] = ()
    """Single-line infilling: tasks with a missing line."""
    texts: Sequence[str] = ()
    """Held-out code, for the loss."""


@dataclass(frozen=True)
class TextLosses:
    """The summed loss of each text in nats, and its tokens."""

    nats: tuple[float, ...]
    num_tokens: tuple[int, ...]
    num_bytes: int

    @property
    def per_token(self) -> Mean:
        """Nats a token."""
        return mean_per_unit(self.nats, self.num_tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the texts."""
        return sum(self.nats) / math.log(2) / self.num_bytes

    def more_than(self, other: "TextLosses | None") -> Mean | None:
        """Nats a token more than `other`'s; None without another, or if its tokens differ."""
        if other is None or other.num_tokens != self.num_tokens:
            return None
        return mean_per_unit([a - b for a, b in zip(self.nats, other.nats, strict=True)], self.num_tokens)


def measure_all(
    models: Sequence[tuple[str, Path]], material: Material,
    serve: Callable[[Path], AbstractContextManager[ServedModel]] = serving, limits: Limits | None = None,
) -> Iterator[TargetFigures]:  # fmt: skip
    """Measure named models one after another; yields the figures of each when it is done.

    `limits` are for the programs that they write. Raises TargetError when the server builds no prompts for a model,
    vLLM does not start on it, it is no model folder, all texts are empty, or programs can't be confined.
    """
    first: TextLosses | None = None
    for name, model in models:
        figures, losses = _measure(name, model, material, serve, limits)
        yield replace(figures, loss_more=losses.more_than(first)) if losses else figures
        first = first or losses


def _measure(
    name: str, model: Path, material: Material, serve: Callable[[Path], AbstractContextManager[ServedModel]],
    limits: Limits | None,
) -> tuple[TargetFigures, TextLosses | None]:  # fmt: skip
    weight_bytes = sum(file.stat().st_size for file in weight_files(model))
    builder = load_builder(model) if material.functions or material.lines or material.texts else None
    of_functions, of_lines = (
        build_prompts(builder, tasks) if builder and tasks else None for tasks in (material.functions, material.lines)
    )
    with serve(model) as served:
        some = of_functions or of_lines
        timed = some.token_ids if some else [served.encode("def main():\n")]
        speed, memory = served.time(timed), served.memory_bytes()
        losses = _losses(served, material.texts, builder.template.file) if builder and material.texts else None
        functions = served.complete(of_functions, FUNCTION_TOKENS) if of_functions else []
        lines = served.complete(of_lines, LINE_TOKENS) if of_lines else []
    figures = TargetFigures(
        name=name, weight_bytes=weight_bytes, memory_bytes=memory, speed=speed,
        loss=losses.per_token if losses else None,
        loss_more=None,
        bits_per_byte=losses.bits_per_byte if losses else None,
        functions=score(material.functions, [only_function(text) for text in functions], limits) if functions else None,
        lines=score(material.lines, [only_line(text) for text in lines], limits) if lines else None,
    )  # fmt: skip
    return figures, losses


def _losses(served: ServedModel, texts: Sequence[str], marker: str) -> TextLosses:
    """Losses of texts, cut into rows that each open as a file; TargetError when all texts are empty."""
    opening = served.opening(marker)
    rows: list[Sequence[int]] = []
    of_text: list[int] = []
    for number, text in enumerate(texts):
        ids = served.encode(text)
        rows += [[*opening, *ids[at : at + ROW_TOKENS]] for at in range(0, len(ids), ROW_TOKENS)]
        of_text += [number] * (len(rows) - len(of_text))
    if not rows:
        raise TargetError("the held-out texts are empty: there is nothing to predict")
    nats, num_tokens = [0.0] * len(texts), [0] * len(texts)
    for number, row, loss in zip(of_text, rows, served.losses(rows), strict=True):
        nats[number] += loss
        num_tokens[number] += len(row) - 1
    return TextLosses(tuple(nats), tuple(num_tokens), sum(len(text.encode()) for text in texts))
