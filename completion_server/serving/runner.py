"""Runs the generations of the book: builds a prompt, asks the engine, and charges the caller for the tokens computed.

Each entry calls the book once; `run` holds the tasks of generations and the book's timer.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol

from completion_server.admission.quotas import Reservation
from completion_server.core.clock import Alarm, Clock
from completion_server.core.errors import CompletionError, UnavailableError
from completion_server.core.outcome import CANCELLED, INTERNAL_ERROR, FinishReason, Outcome
from completion_server.core.request import Request
from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output
from completion_server.prompt.builder import Prompt
from completion_server.scheduling.book import Book, Executor
from completion_server.scheduling.requests import Generation, LiveRequest
from completion_server.serving.completion import Completion
from completion_server.serving.isolation import Isolation
from completion_server.serving.rules import Prompts

logger = logging.getLogger(__name__)

_INLINE_CHARACTERS = 16_384
"""Up to this size the prompt is built on the event loop, because a thread switch would take longer."""


class Generates(Protocol):
    """The part of an engine that generates, see `engine.interface.Engine`."""

    def generate(self, request: GenerationRequest, /) -> AsyncGenerator[Output]:
        """Generate. Closing the generator aborts the work in the engine."""
        ...


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
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._alarm = Alarm(clock, self._tick)
        self._idle = asyncio.Event()
        self._idle.set()

    # Requests

    def submit_nowait(self, request: LiveRequest) -> None:
        """Take a request in. Its `end` may be called before this returns."""
        if self._group is None:
            msg = "the runner does not run"
            raise RuntimeError(msg)
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
        for request in self.book.live_requests:
            self.cancel_nowait(request.id, outcome)

    async def wait_idle(self) -> None:
        """Wait until no request is live and no generation runs."""
        await self._idle.wait()

    async def run(self) -> None:
        """Own the tasks and the timer, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._alarm.set_nowait(self.book.next_tick)
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            self._alarm.clear()

    def _tick(self) -> None:
        if self._group is not None:
            self.book.tick(self._clock.now())
            self._changed()

    def _changed(self) -> None:
        self._alarm.set_nowait(self.book.next_tick)
        if self.book.is_idle:
            self._idle.set()

    # Generations: what the book calls

    def start(self, generation: Generation) -> None:
        """Begin a generation with the prompt of its leader. The task must not hold the leader, which may end before."""
        assert self._group is not None
        leader = generation.leader
        assert isinstance(leader, Completion)
        work = self._generate(generation, leader.request, leader.reservation)
        try:
            task = self._group.create_task(work, name=f"completion-{generation.id}")
        except RuntimeError:  # the task group is shutting down
            work.close()
            logger.exception("generation %s could not start", generation.id)
            asyncio.get_running_loop().call_soon(self._stopped, generation, INTERNAL_ERROR)
            return
        self._tasks[generation] = task
        task.add_done_callback(partial(self._task_done, generation))

    def abort(self, generation: Generation) -> None:
        """Stop a generation.

        The task whose output led to this ends by itself: a cancel would meet it at the abort in the engine.
        """
        task = self._tasks.get(generation)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _generate(self, generation: Generation, request: Request, reservation: Reservation) -> None:
        """Run a generation to its end. Failures are outcomes; only a cancel escapes."""
        failure: Outcome | None = None
        try:
            await self._read_engine(generation, request, reservation)
            if generation.leader is not None:
                raise CompletionError("the engine ended a generation without a finish reason")
        except EngineDeadError:
            away = UnavailableError("the engine failed and is being restarted", retry_after_ms=self._retry_after_ms())
            failure = Outcome(FinishReason.ERROR, error=away, retry_after_ms=away.retry_after_ms)
        except CompletionError as error:
            failure = Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        except Exception:
            logger.exception("generation %s failed", generation.id)
            failure = INTERNAL_ERROR
        finally:
            self._stopped(generation, failure)

    async def _read_engine(self, generation: Generation, request: Request, reservation: Reservation) -> None:
        """Generate until the engine ends it or no request reads it; charge the tokens computed.

        Raises:
            InvalidRequestError: the prompt does not fit.
            EngineDeadError: the engine failed.

        """
        prompt = await self._build_prompt(request)
        self.book.prompt_ready(generation, len(prompt.token_ids), prompt.num_new_tokens, self._clock.now())
        try:
            async with aclosing(self._engine.generate(self._request_of(request, prompt))) as outputs:
                async for output in outputs:
                    self.book.output(generation, output, self._clock.now())
                    self._changed()
                    if generation.leader is None:
                        return
        finally:
            reservation.settle(generation.num_new_tokens + generation.num_tokens, self._clock.now())

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
            trace_headers=request.trace.headers() if request.trace is not None and request.trace.is_sampled else None,
        )

    async def _build_prompt(self, request: Request) -> Prompt:
        build = self._prompts(request).build
        num_characters = len(request.prefix) + len(request.suffix) + sum(len(s.text) for s in request.snippets)
        if request.next_edit is not None:
            num_characters += sum(len(each.diff) for each in request.next_edit.recent_edits)
        if num_characters <= _INLINE_CHARACTERS:
            return build(request)
        return await asyncio.to_thread(build, request)

    def _stopped(self, generation: Generation, failure: Outcome | None = None) -> None:
        self._tasks.pop(generation, None)
        self.book.stopped(generation, failure, self._clock.now())
        self._changed()

    def _task_done(self, generation: Generation, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never enters its own `finally`."""
        if self._tasks.get(generation) is task:
            self._stopped(generation)
