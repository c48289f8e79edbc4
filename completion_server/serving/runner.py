"""The runner: carries out what the book decides. It runs generations as tasks, and gives completions text and ends.

Decisions are taken synchronously, inside the `_nowait` methods; `run` holds the tasks and the timer. Actions go into a
queue that is drained in order: a method that is called while an action is carried out only adds to it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from completion_server.core.clock import Alarm, Clock
from completion_server.core.errors import CompletionError
from completion_server.core.events import Emit, EngineStalled, Event, GenerationJoined, GenerationReattached
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.engine.interface import Output
from completion_server.scheduling.actions import (
    CANCELLED,
    Abort,
    Action,
    Finish,
    Join,
    Reattach,
    Report,
    Start,
    Text,
)
from completion_server.scheduling.book import Book
from completion_server.scheduling.requests import LiveRequest

logger = logging.getLogger(__name__)

INTERNAL_ERROR = Outcome(FinishReason.ERROR, error=CompletionError("internal error; the server's log has more"))


class Reader(Protocol):
    """A live request as the runner sees it: the origin of a generation, and a reader of one."""

    @property
    def live(self) -> LiveRequest:
        """The request's record in the book."""
        ...

    def generate(self, runner: "Runner", /) -> Coroutine[Any, Any, None]:
        """Generate from the request's own prompt; report to `prompt_ready` and `output`, while that returns True.

        Cancelling the coroutine aborts the work in the engine. The coroutine must not hold the reader: another request
        may read the generation by then.
        """
        ...

    def receive(self, text: str) -> None:
        """Take the text that follows the request's cursor."""
        ...

    def finish(self, reason: FinishReason | None) -> Outcome | None:
        """Return the outcome of the answer, None if it continues. `reason` is its generation's end, if that ended."""
        ...

    def end(self, outcome: Outcome, usage: Usage) -> None:
        """Tell the caller. Called exactly once; the generation may still be stopping."""
        ...


class Runner:
    """Runs the tasks of generations, as the book says. It has tasks and readers by their ids and nothing else."""

    def __init__(self, book: Book, clock: Clock, emit: Emit = lambda _event: None) -> None:
        """Change `book` from now on; others may read it."""
        self.book = book
        self._clock = clock
        self._emit = emit
        self._readers: dict[str, Reader] = {}
        """Those of live requests."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The tasks of generations."""
        self._actions: deque[Action] = deque()
        self._is_carrying_out = False
        self._group: asyncio.TaskGroup | None = None
        self._alarm = Alarm(clock, self._tick)
        self._idle = asyncio.Event()
        self._idle.set()

    # Requests

    def submit_nowait(self, reader: Reader) -> None:
        """Take a request in. Its `end` may be called before this returns."""
        if self._group is None:
            msg = "the runner does not run"
            raise RuntimeError(msg)
        self._take_in(reader, self.book.submit(reader.live, self._clock.now()))

    def answer_nowait(self, reader: Reader, outcome: Outcome) -> None:
        """End a request without a generation: its answer is known, or there is no capacity for it.

        It still supersedes an older request of its lane.
        """
        self._take_in(reader, self.book.answer(reader.live, outcome, self._clock.now()))

    def cancel_nowait(self, request_id: str, outcome: Outcome = CANCELLED) -> None:
        """End a request; does nothing if it has ended."""
        self._carry_out(self.book.end(request_id, outcome, self._clock.now()))

    def supersede_nowait(self, lane: str, stamp: int) -> None:
        """End the live requests of a lane that are older than `stamp`: another replica has a newer one."""
        self._carry_out(self.book.supersede(lane, stamp, self._clock.now()))

    def end_all_nowait(self, outcome: Outcome) -> None:
        """End every live request."""
        for request_id in list(self._readers):
            self.cancel_nowait(request_id, outcome)

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

    def _take_in(self, reader: Reader, actions: list[Action]) -> None:
        self._readers[reader.live.id] = reader
        self._idle.clear()
        self._carry_out(actions)

    def _tick(self) -> None:
        if self._group is not None:
            self._carry_out(self.book.tick(self._clock.now()))

    # Generations

    def prompt_ready(self, generation_id: str, num_tokens: int, num_new_tokens: int) -> None:
        """Note that the prompt of a generation is built."""
        self.book.prompt_ready(generation_id, num_tokens, num_new_tokens, self._clock.now())

    def output(self, generation_id: str, output: Output) -> bool:
        """Give an output of the engine to those that read the generation; return whether it goes on."""
        self._carry_out(self.book.output(generation_id, output, self._clock.now()))
        return self.book.goes_on(generation_id)

    async def _generate(self, generation_id: str, begin: Callable[["Runner"], Coroutine[Any, Any, None]]) -> None:
        """Run a generation to its end. Failures are outcomes; only a cancel escapes."""
        failure: Outcome | None = None
        try:
            work = begin(self)
            del begin  # it holds the request that began, which may end long before the generation
            await work
            if self.book.goes_on(generation_id):
                msg = "the engine ended a generation without a finish reason"
                raise CompletionError(msg)
        except CompletionError as error:
            failure = Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        except Exception:
            logger.exception("generation %s failed", generation_id)
            failure = INTERNAL_ERROR
        finally:
            self._stopped(generation_id, failure)

    def _stopped(self, generation_id: str, failure: Outcome | None = None) -> None:
        del self._tasks[generation_id]
        self._carry_out(self.book.stopped(generation_id, failure, self._clock.now()))

    def _task_done(self, generation_id: str, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never enters its own `finally`."""
        if self._tasks.get(generation_id) is task:
            self._stopped(generation_id)

    # Actions

    def _carry_out(self, actions: list[Action]) -> None:
        """Carry out actions in order, and the actions that they cause, even if one raises an exception."""
        self._actions += actions
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._actions:
                action = self._actions.popleft()
                try:
                    self._apply(action)
                except Exception:  # a bug; other requests wait for the other actions
                    logger.exception("%s could not be carried out", action)
        finally:
            self._is_carrying_out = False
            self._alarm.set_nowait(self.book.next_tick)
            if self.book.is_idle:
                self._idle.set()

    def _apply(self, action: Action) -> None:
        match action:
            case Text(request_id, text, finish):
                self._give(request_id, text, finish)
            case Start(generation_id):
                self._start(generation_id)
            case Finish(request_id, outcome, usage):
                self._finish(request_id, outcome, usage)
            case Abort(generation_id):
                self._abort(generation_id)
            case Reattach() | Join():
                self._attach(action)
            case Report(event):
                self._report(event)

    def _start(self, generation_id: str) -> None:
        """Begin a generation. If it can't begin, end its request and go on with the next one."""
        assert self._group is not None
        work = self._generate(generation_id, self._readers[generation_id].generate)
        try:
            task = self._group.create_task(work, name=f"completion-{generation_id}")
        except RuntimeError:  # the task group is shutting down
            work.close()
            logger.exception("generation %s could not start", generation_id)
            self._carry_out(self.book.stopped(generation_id, INTERNAL_ERROR, self._clock.now()))
            return
        self._tasks[generation_id] = task
        task.add_done_callback(partial(self._task_done, generation_id))

    def _abort(self, generation_id: str) -> None:
        """Abort a generation. It has no task if it could not begin.

        The task that carries this out for its own generation ends by itself: `output` tells it. A cancel would meet it
        at the abort in the engine.
        """
        task = self._tasks.get(generation_id)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _attach(self, action: Reattach | Join) -> None:
        """Give a request the text generated so far, which may be its whole answer. If that fails, the request ends."""
        reader = self._readers.get(action.id)
        if reader is None:  # it has ended since
            return
        event = GenerationReattached if isinstance(action, Reattach) else GenerationJoined
        outcome = None
        try:
            self._emit(event(action.num_tokens))
            if action.text:
                reader.receive(action.text)
                outcome = reader.finish(None)
        except Exception:
            logger.exception("request %s could not read generation %s", action.id, action.generation_id)
            self.cancel_nowait(action.id, INTERNAL_ERROR)
            return
        if outcome is not None:
            self._carry_out(self.book.answered(action.id, outcome, self._clock.now()))

    def _give(self, request_id: str, text: str, finish: FinishReason | None) -> None:
        """Give a request new text, and report whether its answer is complete, or its own code failed."""
        reader = self._readers.get(request_id)
        if reader is None:  # it has ended since
            return
        try:
            if text:
                reader.receive(text)
            outcome = reader.finish(finish)
        except Exception:
            logger.exception("request %s failed", request_id)
            outcome = INTERNAL_ERROR
        if outcome is not None:
            self._carry_out(self.book.answered(request_id, outcome, self._clock.now()))

    def _finish(self, request_id: str, outcome: Outcome, usage: Usage) -> None:
        """Report the end to the caller. If that fails, the other actions, which other requests need, still happen."""
        try:
            self._readers.pop(request_id).end(outcome, usage)
        except Exception:
            logger.exception("the end of request %s could not be reported to its caller", request_id)

    def _report(self, event: Event) -> None:
        if isinstance(event, EngineStalled):
            logger.warning("the engine had sent nothing for %.1f s", event.seconds)
        self._emit(event)
