"""Requests and outputs of the interface as vLLM's, and the other way round."""

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output
from completion_server.engine.vllm.drafts.names import BEGINS_WITH, SPECULATE
from completion_server.engine.vllm.token_accounting import GenerationProgress

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
