"""Runs the generations of the book: builds a prompt, asks the engine, and charges the caller for the tokens computed.

There is no task for a request or a generation: each entry calls the book once, and the engine pushes its outputs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from completion_server.core.clock import Alarm, Clock
from completion_server.core.errors import CompletionError, UnavailableError
from completion_server.core.outcome import CANCELLED, INTERNAL_ERROR, FinishReason, Outcome
from completion_server.core.request import Request
from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output, Sink, Work
from completion_server.requests.completion import Completion
from completion_server.requests.isolation import Isolation
from completion_server.requests.limits.quotas import Reservation
from completion_server.requests.rules import Prompts
from completion_server.requests.scheduling.book import Book, Executor
from completion_server.requests.scheduling.requests import Generation, LiveRequest
from completion_server.text.prompt.builder import Prompt

logger = logging.getLogger(__name__)

_INLINE_CHARACTERS = 16_384
"""Up to this size the prompt is built on the event loop, because a thread switch would take longer."""


class Generates(Protocol):
    """The part of an engine that generates, see `engine.interface.Engine`."""

    def submit(self, request: GenerationRequest, sink: Sink, /) -> Work:
        """Begin to generate; `sink` gets the outputs."""
        ...


class _Run:
    """A generation from its start to its stop: the sink of the engine's outputs."""

    __slots__ = ("_runner", "failure", "generation", "is_over", "reservation", "work")

    def __init__(self, runner: "Runner", generation: Generation, reservation: Reservation | None) -> None:
        self._runner = runner
        self.generation = generation
        self.reservation = reservation
        self.work: Work | None = None
        """None before the prompt is built."""
        self.failure: Outcome | None = None
        self.is_over = False
        """Whether it has had its last output or error, or was aborted."""

    def push(self, output: Output) -> None:
        """Take an output of the engine."""
        if not self.is_over:
            self.is_over = output.finish is not None
            self._runner._output(self, output)

    def fail(self, error: Exception) -> None:
        """Take the error that ended the generation in the engine."""
        if not self.is_over:
            self._runner._end(self, self._runner._outcome_of(error, self.generation))
            self._runner._changed()


class Runner:
    """Runs the generations of one book, which is the only part of the server that changes it."""

    def __init__(
        self,
        make_book: Callable[[Executor], Book],
        clock: Clock,
        engine: Generates,
        prompts: Callable[[Request], Prompts],
        isolation: Isolation,
        retry_after_ms: Callable[[], int] = lambda: 1000,
    ) -> None:
        """Generate with `engine` from the prompts of `prompts`.

        If the engine fails, callers are asked to retry after `retry_after_ms()`.
        """
        self.book = make_book(self)
        self._clock = clock
        self._engine = engine
        self._prompts = prompts
        self._isolation = isolation
        self._retry_after_ms = retry_after_ms
        self._runs: dict[Generation, _Run] = {}
        self._stopping: deque[_Run] = deque()
        """Generations that are over, of which the book does not know yet."""
        self._is_running = False
        self._alarm = Alarm(clock, self._tick)
        self._idle = asyncio.Event()
        self._idle.set()

    # Requests

    def submit_nowait(self, request: LiveRequest) -> None:
        """Take a request in. Its `end` may be called before this returns."""
        if not self._is_running:
            raise RuntimeError("the runner does not run")
        self._idle.clear()
        self.book.submit(request, self._clock.now())
        self._changed()

    def answer_nowait(self, request: LiveRequest, outcome: Outcome) -> None:
        """End a request without a generation: its answer is known, or there is no capacity for it.

        It still supersedes an older request of its lane.
        """
        self.book.answer(request, outcome, self._clock.now())
        self._changed()

    def cancel_nowait(self, request_id: str, outcome: Outcome = CANCELLED) -> None:
        """End a request; does nothing if it has ended."""
        self.book.cancel(request_id, outcome, self._clock.now())
        self._changed()

    def supersede_nowait(self, lane: str, stamp: int) -> None:
        """End the live requests of a lane that are older than `stamp`: another replica has a newer one."""
        self.book.supersede(lane, stamp, self._clock.now())
        self._changed()

    def end_all_nowait(self, outcome: Outcome) -> None:
        """End every live request."""
        now = self._clock.now()
        for request in self.book.live_requests:
            self.book.cancel(request.id, outcome, now)
        self._changed()  # after all: a slot that is free would be given to the next that waits

    async def wait_idle(self) -> None:
        """Wait until no request is live and no generation runs."""
        await self._idle.wait()

    async def run(self) -> None:
        """Own the book's timer, until cancelled."""
        self._is_running = True
        try:
            self._alarm.set_nowait(self.book.next_tick)
            await asyncio.get_running_loop().create_future()
        finally:
            self._is_running = False
            self._alarm.clear()

    def _tick(self) -> None:
        self.book.tick(self._clock.now())
        self._changed()

    # What the book calls

    def start(self, generation: Generation) -> None:
        """Begin a generation with the prompt of its leader, which is not kept: it may end before the generation."""
        leader = generation.leader
        assert isinstance(leader, Completion)
        run = self._runs[generation] = _Run(self, generation, leader.reservation)
        leader.reservation = None
        request = leader.request
        if _num_characters(request) <= _INLINE_CHARACTERS:
            self._begin(run, request, lambda: self._prompts(request).build(request))
            return
        try:
            building = asyncio.get_running_loop().run_in_executor(None, self._prompts(request).build, request)
        except Exception as error:  # noqa: BLE001 - it is the outcome of this generation alone
            self._end(run, self._outcome_of(error, generation))
        else:
            building.add_done_callback(partial(self._built, run, request))

    def abort(self, generation: Generation) -> None:
        """Stop a generation, unless it has had its last output."""
        run = self._runs.get(generation)
        if run is not None and not run.is_over:
            self._end(run, None)
            if run.work is not None:
                run.work.abort()

    # What becomes of a generation

    def _built(self, run: _Run, request: Request, building: "asyncio.Future[Prompt]") -> None:
        """Go on with a prompt that a thread has built."""
        if building.cancelled():
            self._end(run, CANCELLED)
        else:
            building.exception()  # takes it, also if nobody needs the prompt any more
            if not run.is_over:
                self._begin(run, request, building.result)
        self._changed()

    def _begin(self, run: _Run, request: Request, prompt_of: Callable[[], Prompt]) -> None:
        """Give the prompt to the engine. A failure ends the generation."""
        try:
            prompt = prompt_of()
            self.book.prompt_ready(run.generation, len(prompt.token_ids), prompt.num_new_tokens, self._clock.now())
            run.work = self._engine.submit(self._request_of(request, prompt), run)
        except Exception as error:  # noqa: BLE001 - it is the outcome of this generation alone
            self._end(run, self._outcome_of(error, run.generation))

    def _output(self, run: _Run, output: Output) -> None:
        try:
            self.book.output(run.generation, output, self._clock.now())
        except Exception:  # a bug, which must not end the engine's loop
            logger.exception("an output of generation %s failed", run.generation.id)
            self._end(run, INTERNAL_ERROR)
            if run.work is not None:
                run.work.abort()
        if output.finish is not None:
            self._end(run, None)
        self._changed()

    def _end(self, run: _Run, failure: Outcome | None) -> None:
        """Have a generation stop when the book's turn is over. The first reason counts."""
        if run.generation in self._runs:
            run.is_over, run.failure = True, failure
            del self._runs[run.generation]
            self._stopping.append(run)

    def _changed(self) -> None:
        """Tell the book of generations that have stopped, and set the time of its next tick."""
        while self._stopping:
            run = self._stopping.popleft()
            now, generation = self._clock.now(), run.generation
            was_taken, run.work = run.work is not None, None  # the work refers to the run
            if run.reservation is not None:
                num_computed = generation.num_new_tokens + generation.num_tokens if was_taken else 0
                run.reservation.settle(num_computed, now)
            self.book.stopped(generation, run.failure, now)
        self._alarm.set_nowait(self.book.next_tick)
        if self.book.is_idle:
            self._idle.set()

    def _outcome_of(self, error: Exception, generation: Generation) -> Outcome:
        if isinstance(error, EngineDeadError):
            error = UnavailableError("the engine failed and is being restarted", retry_after_ms=self._retry_after_ms())
        if isinstance(error, CompletionError):
            return Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        logger.error("generation %s failed", generation.id, exc_info=error)
        return INTERNAL_ERROR

    def _request_of(self, request: Request, prompt: Prompt) -> GenerationRequest:
        return GenerationRequest(
            id=request.id,
            prompt_token_ids=prompt.token_ids,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stop_token_ids=prompt.stop_token_ids,
            begins_with=prompt.begins_with,
            num_beginning_tokens=prompt.num_left_out,
            priority=request.trigger,
            cache_salt=self._isolation.salt(request.caller),
            author=request.caller.owner,
            trace_headers=request.trace.headers() if request.trace is not None and request.trace.is_sampled else None,
        )


def _num_characters(request: Request) -> int:
    """Return how much text a prompt is built from."""
    num_characters = len(request.prefix) + len(request.suffix) + sum(len(each.text) for each in request.snippets)
    if request.next_edit is not None:
        num_characters += sum(len(each.diff) for each in request.next_edit.recent_edits)
    return num_characters
