"""Completions of token ids by vLLM in this process, and its counters of speculation."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from completion_server.engine.vllm import offline
from draft_model.core import PipelineError

_PREFIX = "vllm:spec_decode_"


@dataclass(frozen=True)
class SpeculationCounts:
    """Counts since the engine started: drafts, and those with their first, second, ... token accepted."""

    num_drafts: int
    accepted_at: tuple[int, ...]

    def since(self, earlier: "SpeculationCounts") -> "SpeculationCounts":
        """The counts since an earlier moment."""
        pairs = zip(self.accepted_at, earlier.accepted_at, strict=True)
        return SpeculationCounts(self.num_drafts - earlier.num_drafts, tuple(new - old for new, old in pairs))


@dataclass(frozen=True)
class GeneratedTokens:
    """The tokens of a completion without its end token; `stop` is the end token, None after a cut-off."""

    ids: list[int]
    stop: int | None = None


class OfflineEngine:
    """A running vLLM."""

    def __init__(self, llm: Any) -> None:  # noqa: ANN401 - vLLM's own type, imported late
        self._llm = llm
        self.took_s = 0.0
        """Duration of the last call of `complete`."""
        self.context_tokens: int = llm.llm_engine.model_config.max_model_len
        """Limit of a prompt and its completion together."""

    def complete(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float = 0.0, seed: int = 0,
        ignore_end: bool = False, stops: Sequence[int] = (),
    ) -> list[GeneratedTokens]:  # fmt: skip
        """Complete every prompt, up to the end token (not with `ignore_end`) or one of the tokens `stops`."""
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
        """The counters of speculation, for drafts of this length."""
        drafts, accepted = 0, [0] * num_speculative_tokens
        for metric in self._llm.get_metrics():
            if metric.name == f"{_PREFIX}num_drafts":
                drafts += metric.value
            elif metric.name == f"{_PREFIX}num_accepted_tokens_per_pos":
                accepted = [old + new for old, new in zip(accepted, metric.values, strict=True)]
        return SpeculationCounts(drafts, tuple(accepted))


def _completion(written: Any) -> GeneratedTokens:  # noqa: ANN401 - vLLM's own type, imported late
    ids = list(written.token_ids)
    return GeneratedTokens(ids[:-1], ids[-1]) if written.finish_reason == "stop" else GeneratedTokens(ids)


def refuse_options(options: Mapping[str, Any], *fixed: str) -> None:
    """Raise PipelineError when the chosen `options` of vLLM have one of the `fixed` settings."""
    try:
        offline.refuse_options(options, *fixed)
    except offline.OfflineEngineError as error:
        raise PipelineError(str(error)) from error


@contextmanager
def open_engine(
    target: Path, draft: Path | None = None, *, num_speculative_tokens: int = 0, max_num_seqs: int | None = None,
    options: Mapping[str, Any] | None = None, speculation_graphs: Literal["full", "piecewise"] | None = None,
) -> Iterator[OfflineEngine]:  # fmt: skip
    """Start vLLM on a target, with a draft when one is given; stop it at the end.

    `options` are vLLM's own settings, such as `tensor_parallel_size`; `speculation_graphs` runs a model alone with the
    graphs that it has in speculation. Raises PipelineError when it does not start, dies later, or `options` has a
    setting that is fixed here.
    """
    fixed: dict[str, Any] = {"speculative_config": None, "disable_log_stats": False}
    if max_num_seqs is not None:
        fixed["max_num_seqs"] = max_num_seqs
    if draft is not None and num_speculative_tokens:
        fixed["speculative_config"] = {
            "method": "draft_model", "model": str(draft), "num_speculative_tokens": num_speculative_tokens,
        }  # fmt: skip
    try:
        with offline.offline_engine(target, fixed, options, speculation_graphs=speculation_graphs) as llm:
            yield OfflineEngine(llm)
    except offline.OfflineEngineError as error:
        raise PipelineError(str(error)) from error
