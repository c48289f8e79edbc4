"""The one owner of the book: carries out what the book decides, and tells it when work has stopped.

Decisions are taken synchronously, inside the `_nowait` calls; `run` holds the tasks and the timer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

from completion_server.core.clock import Clock
from completion_server.core.errors import CompletionError
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.scheduling.book import CANCELLED, Abort, Action, Book, End, Start, TakeOver
from completion_server.scheduling.claim import Claim
from completion_server.scheduling.limiter import Limiter

logger = logging.getLogger(__name__)

_INTERNAL_ERROR = Outcome(FinishReason.ERROR, error=CompletionError("internal error; the server's log has more"))


class Work(Protocol):
    """A request as the runner sees it."""

    @property
    def claim(self) -> Claim:
        """What the book needs to know of it."""
        ...

    def can_take_over(self, other: Self) -> bool:
        """Tell whether the work of another request would serve this one too."""
        ...

    def take_over(self, other: Self) -> None:
        """Be what the running work of another request is for from now on. The other's `end` follows."""
        ...

    async def run(self) -> Outcome | None:
        """Do the work, holding a slot; cancelled when the request has lost its claim.

        Return None where the work was taken over by a request that it turns out not to serve.
        """
        ...

    def end(self, outcome: Outcome) -> None:
        """Tell the caller. Called exactly once, perhaps while `run` still winds down."""
        ...


def _nothing(_seconds: float) -> None:
    pass


class Runner:
    """Runs requests as slots allow."""

    def __init__(
        self,
        book: Book,
        clock: Clock,
        limiter: Limiter | None = None,
        on_stopped: Callable[[float], None] = _nothing,
    ) -> None:
        """Own `book` and `limiter` from now on; without one the book's number of slots stays.

        `on_stopped` is told how many seconds work that was aborted went on.
        """
        self._book = book
        self._clock = clock
        self._limiter = limiter
        self._on_stopped = on_stopped
        self._works: dict[str, Work] = {}
        self._tasks: dict[str, asyncio.Task[Outcome | None]] = {}
        self._owners: dict[asyncio.Task[Outcome | None], str] = {}
        """The request that each task works for now: another's than it began for, where that took it over."""
        self._aborted_at: dict[str, float] = {}
        self._group: asyncio.TaskGroup | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def book(self) -> Book:
        """The book, to be read only."""
        return self._book

    def submit_nowait(self, work: Work, *, takes_over: bool = True) -> None:
        """Take a request in. Its `end` may be called before this returns.

        With `takes_over` work that runs for a request that this one makes stale goes on for this one, where it can.
        """
        if self._group is None:
            msg = "the runner does not run"
            raise RuntimeError(msg)
        claim = work.claim
        heir_of = None
        if takes_over:
            rivals = self._book.rivals(claim)
            heir_of = next((rival for rival in rivals if work.can_take_over(self._works[rival])), None)
        self._works[claim.id] = work
        self._idle.clear()
        self._carry_out(self._book.submit(claim, self._clock.now(), heir_of=heir_of))

    def refuse_nowait(self, work: Work, outcome: Outcome) -> None:
        """End a request that there is no room for, and the older one that it makes stale."""
        self._works[work.claim.id] = work
        self._idle.clear()
        self._carry_out(self._book.refuse(work.claim, outcome, self._clock.now()))

    def cancel_nowait(self, request_id: str, outcome: Outcome = CANCELLED) -> None:
        """End a request; nothing happens where it has ended."""
        self._carry_out(self._book.end(request_id, outcome, self._clock.now()))

    def end_all_nowait(self, outcome: Outcome) -> None:
        """End every live request."""
        for request_id in list(self._works):
            self.cancel_nowait(request_id, outcome)

    def prompt_ready_nowait(self, request_id: str, num_new_tokens: int) -> None:
        """Note that the prompt of a request is built, and how many of its tokens the engine will have to compute."""
        self._book.prompt_ready(request_id, num_new_tokens)

    def first_token_nowait(self, request_id: str, num_new_tokens: int | None = None) -> None:
        """Note that a request has its first token, for which `num_new_tokens` tokens of its prompt were computed."""
        self._book.first_token(request_id, self._clock.now(), num_new_tokens)
        self._follow_engine()

    def step_nowait(self, seconds: float) -> None:
        """A step of the engine took a request so long."""
        self._follow_engine(seconds)

    def _follow_engine(self, step_s: float | None = None) -> None:
        """Have as many slots as what the engine lately did says that it bears."""
        if self._limiter is not None:
            first_token_s = self._book.pace.first_token_s
            num_slots = self._limiter.observe(first_token_s, self._book.num_occupied, step_s)
            if num_slots != self._book.num_slots:
                self._carry_out(self._book.resize(num_slots, self._clock.now()))

    async def wait_idle(self) -> None:
        """Wait until no request is live and no work runs."""
        await self._idle.wait()

    async def run(self) -> None:
        """Hold the tasks and keep time, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._arm()
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            if self._timer is not None:
                self._timer.cancel()

    def _arm(self) -> None:
        """Have `_tick` called in time. Where it comes early, because what it was for has ended, it costs little."""
        at = self._book.next_tick
        if at is None or at >= self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = at
        delay_s = max(0.0, at - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer, self._armed_for = None, float("inf")
        if self._group is not None:
            self._carry_out(self._book.tick(self._clock.now()))

    def _carry_out(self, actions: list[Action]) -> None:
        """Carry all actions out, whatever one request's work raises, and then those that its failure brings about."""
        pending = deque(actions)
        while pending:
            match pending.popleft():
                case Start(request_id):
                    pending += self._start(request_id)
                case TakeOver(request_id, from_id):
                    pending += self._take_over(request_id, from_id)
                case Abort(request_id):
                    self._aborted_at[request_id] = self._clock.now()
                    self._tasks[request_id].cancel()
                case End(request_id, outcome):
                    self._end(request_id, outcome)
                    if request_id not in self._tasks:
                        self._forget(request_id)
        self._arm()

    def _end(self, request_id: str, outcome: Outcome) -> None:
        """Tell the caller. Should that fail, the other actions, on which other requests wait, are still carried out."""
        try:
            self._works[request_id].end(outcome)
        except Exception:
            logger.exception("the end of request %s could not be told", request_id)

    def _start(self, request_id: str) -> list[Action]:
        """Begin the work. Return what follows where it can't begin: its end, and the next request's turn."""
        assert self._group is not None
        work = self._work(self._works[request_id])
        try:
            task = self._group.create_task(work, name=f"completion-{request_id}")
        except RuntimeError:  # the task group is shutting down
            work.close()
            logger.exception("request %s could not start", request_id)
            return self._book.work_done(request_id, _INTERNAL_ERROR, self._clock.now())
        self._tasks[request_id] = task
        self._owners[task] = request_id
        # By callback, because a task that is cancelled before its first step never enters its own `finally`.
        task.add_done_callback(self._work_done)
        return []

    def _take_over(self, request_id: str, from_id: str) -> list[Action]:
        """Give running work to another request. Return what follows where that fails: its end, and the work's abort."""
        task = self._tasks[request_id] = self._tasks.pop(from_id)
        self._owners[task] = request_id
        try:
            self._works[request_id].take_over(self._works[from_id])
        except Exception:
            logger.exception("request %s could not take over the work of %s", request_id, from_id)
            return self._book.end(request_id, _INTERNAL_ERROR, self._clock.now())
        return []

    async def _work(self, work: Work) -> Outcome | None:
        """Run to an outcome. Only cancelling escapes: one request's failure is never another's."""
        try:
            return await work.run()
        except CompletionError as error:
            return Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        except Exception:
            logger.exception("request %s failed", work.claim.id)
            return _INTERNAL_ERROR

    def _work_done(self, task: asyncio.Task[Outcome | None]) -> None:
        request_id = self._owners.pop(task)
        del self._tasks[request_id]
        now = self._clock.now()
        aborted_at = self._aborted_at.pop(request_id, None)
        if aborted_at is not None:
            self._on_stopped(now - aborted_at)
            self._follow_engine()
        outcome = CANCELLED if task.cancelled() else task.result()
        if outcome is None and aborted_at is None:
            self._carry_out(self._book.parted(request_id, now))
            return
        self._carry_out(self._book.work_done(request_id, outcome or CANCELLED, now))
        if request_id in self._works:  # its End came before, when it lost its claim
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        del self._works[request_id]
        if not self._works:
            self._idle.set()
