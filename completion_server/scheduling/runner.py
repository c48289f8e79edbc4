"""The one owner of the book: carries out what the book decides, and tells it when work has stopped.

Decisions are taken synchronously, inside the `_nowait` calls; `run` holds the tasks and the deadline timer.
"""

import asyncio
import logging
from typing import Protocol

from completion_server.core.clock import Clock
from completion_server.core.errors import CompletionError
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.scheduling.book import CANCELLED, Abort, Action, Book, Claim, End, Start

logger = logging.getLogger(__name__)


class Work(Protocol):
    """A request as the runner sees it."""

    @property
    def claim(self) -> Claim:
        """What the book needs to know of it."""
        ...

    async def run(self) -> Outcome:
        """Do the work, holding a slot; cancelled when the request has lost its claim."""
        ...

    def end(self, outcome: Outcome) -> None:
        """Tell the caller. Called exactly once, perhaps while `run` still winds down."""
        ...


class Runner:
    """Runs requests as slots allow."""

    def __init__(self, book: Book, clock: Clock) -> None:
        """Own `book` from now on."""
        self._book = book
        self._clock = clock
        self._works: dict[str, Work] = {}
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._wake = asyncio.Event()
        self._armed_for = float("inf")
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def book(self) -> Book:
        """The book, to be read only."""
        return self._book

    def submit_nowait(self, work: Work) -> None:
        """Take a request in. Its `end` may be called before this returns."""
        if self._group is None:
            msg = "the runner does not run"
            raise RuntimeError(msg)
        self._works[work.claim.id] = work
        self._idle.clear()
        self._carry_out(self._book.submit(work.claim))
        self._arm()

    def cancel_nowait(self, request_id: str, outcome: Outcome = CANCELLED) -> None:
        """End a request; nothing happens where it has ended."""
        self._carry_out(self._book.end(request_id, outcome))

    def end_all_nowait(self, outcome: Outcome) -> None:
        """End every live request."""
        for request_id in list(self._works):
            self.cancel_nowait(request_id, outcome)

    async def wait_idle(self) -> None:
        """Wait until no request is live and no work runs."""
        await self._idle.wait()

    async def run(self) -> None:
        """Hold the tasks and keep deadlines, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                while True:
                    await self._sleep_until_deadline()
                    self._carry_out(self._book.tick(self._clock.now()))
        finally:
            self._group = None

    async def _sleep_until_deadline(self) -> None:
        deadline = self._book.next_deadline
        self._armed_for = float("inf") if deadline is None else deadline
        self._wake.clear()
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self._clock.now())):
                await self._wake.wait()
        except TimeoutError:
            return

    def _arm(self) -> None:
        deadline = self._book.next_deadline
        if deadline is not None and deadline < self._armed_for:
            self._wake.set()

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(request_id):
                    self._start(request_id)
                case Abort(request_id):
                    self._tasks[request_id].cancel()
                case End(request_id, outcome):
                    self._end(request_id, outcome)
                    if request_id not in self._tasks:
                        self._forget(request_id)

    def _end(self, request_id: str, outcome: Outcome) -> None:
        """Tell the caller. Should that fail, the other actions, on which other requests wait, are still carried out."""
        try:
            self._works[request_id].end(outcome)
        except Exception:
            logger.exception("the end of request %s could not be told", request_id)

    def _start(self, request_id: str) -> None:
        assert self._group is not None
        task = self._group.create_task(self._work(self._works[request_id]), name=f"completion-{request_id}")
        self._tasks[request_id] = task
        # By callback, because a task that is cancelled before its first step never enters its own `finally`.
        task.add_done_callback(lambda done: self._work_done(request_id, done))

    async def _work(self, work: Work) -> Outcome:
        """Run to an outcome. Only cancelling escapes: one request's failure is never another's."""
        try:
            return await work.run()
        except CompletionError as error:
            return Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        except Exception:
            logger.exception("request %s failed", work.claim.id)
            return Outcome(FinishReason.ERROR, error=CompletionError("internal error; the server's log has more"))

    def _work_done(self, request_id: str, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[request_id]
        outcome = CANCELLED if task.cancelled() else task.result()
        self._carry_out(self._book.work_done(request_id, outcome))
        if request_id in self._works:  # its End came before, when it lost its claim
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        del self._works[request_id]
        if not self._works:
            self._idle.set()
