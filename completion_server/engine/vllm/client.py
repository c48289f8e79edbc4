"""Generations of a vLLM engine through `AsyncLLM`, in whatever process its core was started."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack

from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

from completion_server.engine.interface import EngineDeadError, EngineInfo, GenerationRequest, Output, SpeculationLookup
from completion_server.engine.vllm.drafts.shared_lookup import SPECULATE
from completion_server.engine.vllm.patches.server import sampled_spans, span_exporter
from completion_server.engine.vllm.token_accounting import GenerationProgress, TokenAccounting

_FINISH = {"stop": "stop", "repetition": "stop", "length": "length"}
"""vLLM's finish reasons as those of the interface; any other ("abort", "error") means that it gave a generation up."""


class VllmClient:
    """One process's connection to an engine core."""

    def __init__(self, *, has_spans: bool) -> None:
        """Prepare. With spans, vLLM makes those of requests with trace headers."""
        self._has_spans = has_spans
        self._llm: AsyncLLM | None = None
        self._info: EngineInfo | None = None
        self._accounting = TokenAccounting()

    @property
    def info(self) -> EngineInfo:
        """The loaded models and their limits."""
        if self._info is None:
            msg = "the engine has not started"
            raise EngineDeadError(msg)
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether the core has not been seen to die."""
        return self._llm is not None and not self._llm.errored

    @property
    def lookup(self) -> SpeculationLookup:
        """The active K by number of sequences; in an attached engine as of the last step that had output for it."""
        return self._accounting.lookup

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now."""
        raise NotImplementedError

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        """Generate; see the interface."""
        llm = self._llm
        if llm is None:
            msg = "the engine is not running"
            raise EngineDeadError(msg)
        speculates = request.sampling.speculate or bool(self.info.speculation_locked_reason)
        progress = self._accounting.progress[request.id] = GenerationProgress(speculates)
        prompt = tokens_input(request.prompt_token_ids, cache_salt=self.salt(request.cache_salt) or None)
        headers = request.trace_headers if self._has_spans else None
        stream = llm.generate(
            prompt, _sampling_params(request), request.id, priority=request.priority, trace_headers=headers
        )
        try:
            async for result in stream:
                yield _output(result, progress)
        except VllmEngineDeadError as error:
            msg = "the engine died"
            raise EngineDeadError(msg) from error
        finally:
            # Forget it before the abort, so that tokens which the engine still computes for it count as aborted.
            self._accounting.progress.pop(request.id, None)
            await stream.aclose()

    def _connected(self, llm: AsyncLLM, info: EngineInfo) -> None:
        """Begin to count and to read what the core sends."""
        self._llm, self._info = llm, info
        self._accounting.lookup = info.speculation_lookup
        self._accounting.watch(llm.output_processor)
        if self._has_spans:
            sampled_spans.apply(llm.output_processor)
        # vLLM begins to read at the first request. But the core also sends the steps of others, and news of its death.
        llm._run_output_handler()  # type: ignore[no-untyped-call]

    def _disconnect(self) -> AsyncLLM | None:
        """End all generations with EngineDeadError; return vLLM's client, which is not shut down."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.output_processor.propagate_error(VllmEngineDeadError())
            if llm.output_handler is not None:
                llm.output_handler.cancel()
        return llm

    def _without_exporter(self) -> ExitStack:
        """Return a context in which a client of vLLM's may be made: it leaves the export of spans to the server."""
        stack = ExitStack()
        if self._has_spans:
            stack.callback(span_exporter.apply())
        return stack


def _output(result: RequestOutput, progress: GenerationProgress) -> Output:
    completion = result.outputs[0]
    finish = None
    if result.finished:
        finish = _FINISH.get(str(completion.finish_reason))
        if finish is None:
            msg = f"the engine gave a generation up: {completion.finish_reason}"
            raise EngineDeadError(msg)
    return Output(
        text=completion.text,
        num_tokens=len(completion.token_ids),
        finish=finish,
        cached_prompt_tokens=result.num_cached_tokens or 0,
        drafted_tokens=progress.drafted(),
        accepted_draft_tokens=progress.accepted(),
    )


def _sampling_params(request: GenerationRequest) -> SamplingParams:
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.sampling.temperature,
        seed=request.sampling.seed,
        stop_token_ids=list(request.stop_token_ids) or None,
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.DELTA,
        skip_special_tokens=True,
        extra_args=None if request.sampling.speculate else {SPECULATE: False},
    )
