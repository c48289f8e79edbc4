"""Requests, outputs and statistics of the interface as vLLM's, and the other way round."""

from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.metrics.loggers import StatLoggerBase

from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output
from completion_server.engine.vllm import AUTHOR, BEGINS_WITH, SPECULATE
from completion_server.engine.vllm.token_accounting import GenerationProgress, StepMeter

_FINISH = {"stop": "stop", "repetition": "stop", "length": "length"}
"""vLLM's finish reasons as those of the interface; any other ("abort", "error") means that it gave a generation up."""


def output_of(result: RequestOutput, progress: GenerationProgress, num_skipped: int = 0) -> Output:
    """Return what a step of vLLM's added to a generation, without its first `num_skipped` characters.

    Raises:
        EngineDeadError: vLLM gave the generation up.

    """
    completion = result.outputs[0]
    finish = None
    if result.finished:
        finish = _FINISH.get(str(completion.finish_reason))
        if finish is None:
            msg = f"the engine gave a generation up: {completion.finish_reason}"
            raise EngineDeadError(msg)
    return Output(
        text=completion.text[num_skipped:],
        num_tokens=len(completion.token_ids),
        finish=finish,
        cached_prompt_tokens=result.num_cached_tokens or 0,
        drafted_tokens=progress.drafted(),
        accepted_draft_tokens=progress.accepted(),
    )


def sampling_params(request: GenerationRequest) -> SamplingParams:
    """Return vLLM's parameters of a request."""
    extra: dict[str, object] = {} if request.sampling.speculate else {SPECULATE: False}
    if request.begins_with:
        extra[BEGINS_WITH] = request.begins_with
    if request.author and request.sampling.speculate:
        extra[AUTHOR] = request.author
    return SamplingParams(
        max_tokens=request.max_tokens + request.num_beginning_tokens,
        temperature=request.sampling.temperature,
        seed=request.sampling.seed,
        stop_token_ids=list(request.stop_token_ids) or None,
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.DELTA,
        skip_special_tokens=True,
        extra_args=extra or None,
    )


class LastStatistics(StatLoggerBase):
    """Keeps the scheduler's last statistics. vLLM calls it after each step that changed them."""

    def __init__(self, meter: StepMeter) -> None:
        """End each step of `meter`."""
        self._meter = meter
        self.num_running = 0
        self.num_waiting = 0
        self.kv_usage = 0.0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        """Take the statistics of a step; None if vLLM has none of the scheduler."""
        if scheduler_stats is not None:
            self.num_running = scheduler_stats.num_running_reqs
            self.num_waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            self._meter.end(scheduler_stats.spec_decoding_stats, self.num_running)

    def log_engine_initialized(self) -> None:
        """Log nothing."""
