"""One generation of vLLM: its outputs go to the sink from vLLM's own output handler, without a task of its own."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from completion_server.engine.interface import EngineDeadError, GenerationRequest, Sink
from completion_server.engine.vllm.conversion import output_of
from completion_server.engine.vllm.token_accounting import GenerationProgress, TokenAccounting

logger = logging.getLogger(__name__)

_tasks: set[asyncio.Task[Any]] = set()
"""Calls of vLLM that had to wait."""


class VllmGeneration:
    """The work of one generation. Takes the place of the collector that vLLM puts a request's outputs into."""

    def __init__(
        self,
        llm: AsyncLLM,
        accounting: TokenAccounting,
        request: GenerationRequest,
        progress: GenerationProgress,
        sink: Sink,
    ) -> None:
        self._llm = llm
        self._accounting = accounting
        self._id = request.id
        self._progress = progress
        self._sink = sink
        self._num_given = len(request.begins_with)
        self._vllm_id = ""
        self._is_over = False
        self._is_aborted = False

    def begin(self, adding: "Coroutine[Any, Any, RequestOutputCollector]") -> None:
        """Have vLLM add the request. Raises EngineDeadError if the engine is dead, else vLLM's refusal."""
        try:
            run_eagerly(adding, self._added, self._fail)
        except VllmEngineDeadError as error:
            self._end()
            raise EngineDeadError("the engine died") from error
        except BaseException:
            self._end()
            raise

    def abort(self) -> None:
        """Stop; see the interface."""
        self._is_aborted = True
        if not self._is_over:
            self._end()
            self._abort_in_vllm()

    def _added(self, collector: RequestOutputCollector) -> None:
        self._vllm_id = collector.request_id
        if self._is_over:  # aborted while vLLM had to wait
            self._abort_in_vllm()
            return
        collector.put = self.put  # type: ignore[method-assign, assignment]
        if (output := collector.output) is not None:
            self.put(output)

    def put(self, result: Any) -> None:
        """Take what vLLM's output handler has for this request: an output or the error that ended it."""
        if self._is_over:
            return
        try:
            if isinstance(result, Exception):
                raise result
            assert isinstance(result, RequestOutput)
            output = output_of(result, self._progress, self._num_given)
        except Exception as error:  # noqa: BLE001 - the sink hears of it
            self._fail(error)
            if isinstance(result, RequestOutput) and not result.finished:  # vLLM itself forgets a finished one
                self._abort_in_vllm()
            return
        self._num_given = max(0, self._num_given - len(result.outputs[0].text))
        if output.finish is not None:
            self._end()
        try:
            self._sink.push(output)
        except Exception:  # a bug, which must not end vLLM's output handler
            logger.exception("an output of generation %s was lost", self._id)

    def _fail(self, error: BaseException) -> None:
        """Tell the sink in a turn of its own: vLLM may be going through its requests now, and one may begin then."""
        if not self._is_over:
            self._end()
            is_its_own = isinstance(error, Exception) and not isinstance(error, VllmEngineDeadError)
            failure = error if is_its_own else EngineDeadError("the engine died")
            asyncio.get_running_loop().call_soon(self._tell, failure)

    def _tell(self, error: Any) -> None:
        if not self._is_aborted:
            self._sink.fail(error)

    def _abort_in_vllm(self) -> None:
        if self._vllm_id:
            try:
                run_eagerly(self._llm.abort(self._vllm_id, internal=True), ignore, ignore)
            except Exception:  # of a dead engine, which the supervisor sees by itself
                logger.warning("generation %s could not be aborted", self._id, exc_info=True)

    def _end(self) -> None:
        """Forget it, so that tokens which the engine still computes for it count as aborted."""
        self._is_over = True
        self._accounting.progress.pop(self._id, None)


def run_eagerly(
    coroutine: Coroutine[Any, Any, Any], then: Callable[[Any], object], on_error: Callable[[BaseException], object]
) -> asyncio.Task[Any] | None:
    """Run a coroutine at once, and give its result to `then`.

    Only if it has to wait, a task runs the rest, and its error goes to `on_error`; an error before that is raised.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        then(done.value)
        return None

    async def rest() -> Any:
        return await _Rest(coroutine, awaited)

    def finish(task: asyncio.Task[Any]) -> None:
        _tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            then(task.result())
        else:
            on_error(error)

    task = asyncio.get_running_loop().create_task(rest())
    _tasks.add(task)
    task.add_done_callback(finish)
    return task


class _Rest:
    """What is left of a coroutine that waits for a future already."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - as a task does
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, sent)
            try:
                awaited = step()
            except StopIteration as done:
                return done.value


def ignore(_result: object) -> None:
    """Ignore a result, or an error: calls of a dead engine fail, which the supervisor sees by itself."""
