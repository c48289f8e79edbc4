"""The real engine, vLLM, in this process: completions of token ids, and what speculation it counted.

Imported only where it is used: vLLM takes seconds to import and changes the process's signal handling and environment.
"""

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draft_model.core.errors import PipelineError

_PREFIX = "vllm:spec_decode_"
QUIETLY = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONWARNINGS": "ignore::FutureWarning",
}
"""Environment of the engine's processes, unless it says otherwise."""


@dataclass(frozen=True)
class SpeculationCounts:
    """Since the engine started: drafts made, and how many of them had their first, second, ... token accepted."""

    num_drafts: int
    accepted_at: tuple[int, ...]

    def since(self, earlier: "SpeculationCounts") -> "SpeculationCounts":
        """What came on top of an earlier count."""
        pairs = zip(self.accepted_at, earlier.accepted_at, strict=True)
        return SpeculationCounts(self.num_drafts - earlier.num_drafts, tuple(new - old for new, old in pairs))


@dataclass(frozen=True)
class Completion:
    """Token ids, and the token that ended it, which is not among them; None where it was cut off."""

    ids: list[int]
    stop: int | None = None


class Engine:
    """A running engine."""

    def __init__(self, llm: Any) -> None:  # noqa: ANN401 - vLLM's own type, imported late
        self._llm = llm
        self.took_s = 0.0
        """How long the last call of `complete` took."""
        self.context_tokens: int = llm.llm_engine.model_config.max_model_len
        """Of a prompt and its completion together."""

    def complete(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float = 0.0, seed: int = 0,
        ignore_end: bool = False, stops: Sequence[int] = (),
    ) -> list[Completion]:  # fmt: skip
        """The completion of every prompt; past its end with `ignore_end`. The tokens `stops` end one too."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed + number if temperature else None,
                ignore_eos=ignore_end,
                stop_token_ids=list(stops),
            )
            for number in range(len(prompts))
        ]
        begun = time.perf_counter()
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], params, use_tqdm=False
        )  # fmt: skip
        self.took_s = time.perf_counter() - begun
        return [_completion(output.outputs[0]) for output in outputs]

    def speculation(self, num_speculative_tokens: int) -> SpeculationCounts:
        """What speculation came to so far."""
        drafts, accepted = 0, [0] * num_speculative_tokens
        for metric in self._llm.get_metrics():
            if metric.name == f"{_PREFIX}num_drafts":
                drafts += metric.value
            elif metric.name == f"{_PREFIX}num_accepted_tokens_per_pos":
                accepted = [old + new for old, new in zip(accepted, metric.values, strict=True)]
        return SpeculationCounts(drafts, tuple(accepted))


def _completion(written: Any) -> Completion:  # noqa: ANN401 - vLLM's own type, imported late
    ids = list(written.token_ids)
    return Completion(ids[:-1], ids[-1]) if written.finish_reason == "stop" else Completion(ids)


def refuse_options(options: Mapping[str, Any], *given: str) -> None:
    """PipelineError when one of vLLM's own settings is among those that are `given` already."""
    taken = [name for name in options if name in given]
    if taken:
        raise PipelineError(f"{', '.join(taken)}: no setting to choose here, the figures rest on it")


@contextmanager
def open_engine(
    target: Path, draft: Path | None = None, *, num_speculative_tokens: int = 0, max_num_seqs: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Engine]:  # fmt: skip
    """Start vLLM on a target, with a draft when one is given; stop it at the end.

    `options` are vLLM's own settings, such as `tensor_parallel_size`. Raises PipelineError when it does not start, dies
    later, or `options` has a setting that is given here already.
    """
    given: dict[str, Any] = {
        "model": str(target), "speculative_config": None, "disable_log_stats": False, "use_tqdm_on_load": False,
    }  # fmt: skip
    if max_num_seqs is not None:
        given["max_num_seqs"] = max_num_seqs
    if draft is not None and num_speculative_tokens:
        given["speculative_config"] = {
            "method": "draft_model", "model": str(draft), "num_speculative_tokens": num_speculative_tokens,
        }  # fmt: skip
    refuse_options(options or {}, *given)
    for name, value in QUIETLY.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Importing it uses deprecated parts of torch.
        from vllm import LLM
        from vllm.platforms import current_platform
        from vllm.v1.engine.exceptions import EngineDeadError

    try:
        llm = LLM(**given | {"enforce_eager": current_platform.is_cpu()} | dict(options or {}))
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise PipelineError(f"vLLM does not start on {target}: {error}") from error
    try:
        yield Engine(llm)
    except EngineDeadError as error:
        raise PipelineError(f"vLLM died while it served {target}; its own words are above") from error
    finally:
        llm.llm_engine.engine_core.shutdown()
