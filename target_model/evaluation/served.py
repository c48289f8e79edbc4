"""A target in vLLM: completions, the loss of given text, speed and memory."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from completion_server.engine.vllm.offline import OfflineEngineError, offline_engine
from target_model.core import EvaluationError
from target_model.evaluation.tasks import EvaluationPrompts

_COMMAND = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
MAX_SEQS = 32
TIMED_RUNS = 9
TIMED_TOKENS = 64


def gpu_memory_bytes() -> int:
    """Return the memory in use on all GPUs, whoever uses it; EvaluationError if the driver does not answer.

    The processes' resident memory is the host's, and has nothing of what lies on a GPU.
    """
    try:
        done = subprocess.run(_COMMAND, capture_output=True, text=True, check=True)
        return sum(int(line) for line in done.stdout.split()) << 20
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise EvaluationError(f"nvidia-smi does not tell the GPU's memory: {error}") from error


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
        outputs = self._generate(prompts.token_ids, max_tokens, stop_token_ids=prompts.stops)
        return [output.outputs[0].text for output in outputs]

    def losses(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Nats of every row, summed over its tokens behind the first."""
        outputs = self._generate(rows, 1, prompt_logprobs=0)
        return [_nats(row, output.prompt_logprobs) for row, output in zip(rows, outputs, strict=True)]

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
        alone = [
            self._timed([prompt], TIMED_TOKENS) - took for prompt, took in zip(some, first, strict=False)
        ]  # fmt: skip
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

    def _generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, **more: Any) -> list[Any]:  # noqa: ANN401
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **more)
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs: list[Any] = self._llm.generate(requests, params, use_tqdm=False)
        return outputs


def _nats(row: Sequence[int], logprobs: Sequence[Any]) -> float:
    nats: float = -sum(options[token].logprob for token, options in zip(row[1:], logprobs[1:], strict=True))
    return nats


@contextmanager
def serving(model: Path, options: Mapping[str, Any] | None = None) -> Iterator[ServedModel]:
    """Start vLLM on a model folder; stop it at the end. No prefix cache: no run profits from another.

    `options` are vLLM's own settings, such as `tensor_parallel_size`. Raises EvaluationError when it does not start,
    dies later, or `options` has a setting that is fixed here.
    """
    fixed = {"max_num_seqs": MAX_SEQS, "enable_prefix_caching": False}
    try:
        with offline_engine(model, fixed, options) as llm:
            yield ServedModel(llm)
    except OfflineEngineError as error:
        raise EvaluationError(str(error)) from error
