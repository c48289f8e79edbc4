"""The runner: owns the book, the generations and the requests that read them, and carries the book's actions out.

Decisions are taken synchronously, inside the `_nowait` methods; `run` holds the tasks and the timer. Actions go into a
queue that is drained in order: a method that is called while an action is carried out only adds to it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from completion_server.core.clock import Alarm, Clock
from completion_server.core.errors import CompletionError
from completion_server.core.events import Emit, GenerationAborted, GenerationJoined, GenerationReattached
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.scheduling.actions import CANCELLED, Abort, Action, Finish, HandOver, Join, Reattach, Start
from completion_server.scheduling.book import Book
from completion_server.scheduling.delivery import INTERNAL_ERROR, Delivery
from completion_server.scheduling.generation import Progress, PromptReady, Subscriber
from completion_server.scheduling.limiter import ConcurrencyLimiter
from completion_server.scheduling.work import HeldRequest, Work, first_serving

logger = logging.getLogger(__name__)


class Runner:
    """Runs requests as slots allow."""

    def __init__(
        self, book: Book, clock: Clock, limiter: ConcurrencyLimiter | None = None, emit: Emit = lambda _event: None
    ) -> None:
        """Own `book` and `limiter` from now on; without a limiter the book's number of slots stays."""
        self._book = book
        self._clock = clock
        self._limiter = limiter
        self._emit = emit
        self._requests: dict[str, HeldRequest] = {}
        self._delivery = Delivery(book, clock, limiter, emit, self._carry_out)
        self._actions: deque[Action] = deque()
        self._is_carrying_out = False
        self._group: asyncio.TaskGroup | None = None
        self._alarm = Alarm(clock, self._tick)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def book(self) -> Book:
        """The book, to be read only."""
        return self._book

    @property
    def slots_reason(self) -> str:
        """Why there are fewer slots than the configured maximum; "" if there are not."""
        return self._limiter.reason if self._limiter is not None else ""

    @property
    def num_held(self) -> int:
        """Requests that are live or whose generation is still stopping."""
        return len(self._requests)

    def submit_nowait(self, subscriber: Subscriber) -> None:
        """Take a request in. Its `end` may be called before this returns.

        The request reattaches to a running generation if its text agrees with the text typed since.
        """
        if self._group is None:
            msg = "the runner does not run"
            raise RuntimeError(msg)
        entry = subscriber.entry
        candidates = (self._requests[request_id] for request_id in self._book.candidates(entry))
        reattach_to = first_serving(candidates, entry)
        self._hold(subscriber)
        self._carry_out(self._book.submit(entry, self._clock.now(), reattach_to=reattach_to))

    def answer_nowait(self, subscriber: Subscriber, outcome: Outcome) -> None:
        """End a request without a generation: its answer is known, or there is no capacity for it.

        It still supersedes an older request of its lane.
        """
        self._hold(subscriber)
        self._carry_out(self._book.answer(subscriber.entry, outcome, self._clock.now()))

    def cancel_nowait(self, request_id: str, outcome: Outcome = CANCELLED) -> None:
        """End a request; does nothing if it has ended."""
        self._carry_out(self._book.end(request_id, outcome, self._clock.now()))

    def supersede_nowait(self, lane: str, stamp: int) -> None:
        """End the live requests of a lane that are older than `stamp`: another replica has a newer one."""
        self._carry_out(self._book.supersede(lane, stamp, self._clock.now()))

    def end_all_nowait(self, outcome: Outcome) -> None:
        """End every live request."""
        for request_id in list(self._requests):
            self.cancel_nowait(request_id, outcome)

    async def wait_idle(self) -> None:
        """Wait until no request is live and no generation runs."""
        await self._idle.wait()

    async def run(self) -> None:
        """Own the tasks and the timer, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._alarm.set_nowait(self._book.next_tick)
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            self._alarm.clear()

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
            self._alarm.set_nowait(self._book.next_tick)

    def _apply(self, action: Action) -> None:
        match action:
            case Start(request_id):
                self._start(self._requests[request_id])
            case Reattach(request_id, from_id):
                self._reattach(self._requests[request_id], self._requests[from_id])
            case Join(request_id, leader_id):
                self._join(self._requests[request_id], self._requests[leader_id])
            case HandOver(request_id, from_id):
                self._hand_over(self._requests[request_id], self._requests[from_id])
            case Abort(request_id):
                self._abort(self._requests.get(request_id))
            case Finish(request_id, outcome):
                self._finish(self._requests[request_id], outcome)

    def _start(self, request: HeldRequest) -> None:
        """Begin a generation for a request. If it can't begin, end the request and go on with the next one."""
        assert self._group is not None
        work = Work.begin(request)
        running = self._generate(work, request.subscriber.generate)
        try:
            task = self._group.create_task(running, name=f"completion-{request.id}")
        except RuntimeError:  # the task group is shutting down
            running.close()
            request.work = request.subscription = None
            logger.exception("request %s could not start", request.id)
            self._carry_out(self._book.work_done(request.id, INTERNAL_ERROR, self._clock.now()))
            return
        work.task = task
        # By callback, because a task that is cancelled before its first step never enters its own `finally`.
        task.add_done_callback(lambda task: self._work_done(work, task))

    def _reattach(self, request: HeldRequest, older: HeldRequest) -> None:
        """Have a request read the generation of an older one in its place."""
        work, now = older.work, self._clock.now()
        assert work is not None
        work.move(older, request)
        request.subscriber.marks.started = request.subscriber.marks.prompted = now
        self._delivery.catch_up(request, work, GenerationReattached(work.generation.num_tokens))

    def _join(self, request: HeldRequest, leader: HeldRequest) -> None:
        """Have a request read the generation of another one, too. There is none if it could not begin."""
        work, now = leader.work, self._clock.now()
        if work is None:
            return
        work.join(request)
        request.subscriber.marks.started = now
        request.subscriber.marks.prompted = now if work.generation.has_prompt else None
        self._delivery.catch_up(request, work, GenerationJoined(work.generation.num_tokens))

    def _hand_over(self, request: HeldRequest, older: HeldRequest) -> None:
        """Give the slot of a request, which reads no longer, to one that has joined it."""
        if older.work is not None:
            older.work.hand_over(request)

    def _abort(self, request: HeldRequest | None) -> None:
        """Abort the generation of a request. There is none if it could not begin."""
        work = request.work if request is not None else None
        if work is not None and work.task is not None:
            work.aborted_at = self._clock.now()
            work.task.cancel()

    def _finish(self, request: HeldRequest, outcome: Outcome) -> None:
        """Report the end to the caller. If that fails, the other actions, which other requests need, still happen."""
        request.has_ended = True
        try:
            request.subscriber.end(outcome, request.usage())
        except Exception:
            logger.exception("the end of request %s could not be reported to its caller", request.id)
        if request.work is not None and request.work.request is not request:
            request.work.leave(request)
        self._release(request)

    async def _generate(self, work: Work, start: Callable[[], AsyncGenerator[Progress]]) -> Outcome | None:
        """Run a generation to an outcome, None if it diverged. Failures are outcomes; only cancel escapes."""
        marks = work.request.subscriber.marks
        if marks.started is None:  # else the request has reattached meanwhile
            marks.started = self._clock.now()
        try:
            source = start()
            del start, marks  # they hold the request that began, which may end long before the generation
            async with aclosing(source) as steps:
                async for progress in steps:
                    if isinstance(progress, PromptReady):
                        self._delivery.prompt_ready(work, progress)
                        continue
                    outcome = self._delivery.take(work, progress)
                    if outcome is not None or work.request.subscription is None:
                        return outcome
            msg = "the engine ended a generation without a finish reason"
            raise CompletionError(msg)
        except CompletionError as error:
            return Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        except Exception:
            logger.exception("request %s failed", work.request.id)
            return INTERNAL_ERROR
        finally:
            self._delivery.close(work)

    def _work_done(self, work: Work, task: asyncio.Task[Outcome | None]) -> None:
        """The task of a generation has ended."""
        request, now = work.request, self._clock.now()
        if work.aborted_at is not None:
            self._emit(GenerationAborted(now - work.aborted_at))
            self._delivery.follow_engine()
        outcome = CANCELLED if task.cancelled() else task.result()
        if outcome is None and work.aborted_at is None:
            request.work = None
            self._carry_out(self._book.diverged(request.id, now))
            return
        work.task = None
        self._carry_out(self._book.work_done(request.id, outcome or CANCELLED, now))
        self._release(request)

    def _tick(self) -> None:
        if self._group is not None:
            self._carry_out(self._book.tick(self._clock.now()))

    # Requests

    def _hold(self, subscriber: Subscriber) -> None:
        self._requests[subscriber.entry.id] = HeldRequest(subscriber)
        self._idle.clear()

    def _release(self, request: HeldRequest) -> None:
        """Forget a request that has ended and whose work is done."""
        if request.has_ended and (request.work is None or request.work.task is None):
            request.work = None
            if self._requests.get(request.id) is request:
                del self._requests[request.id]
            if not self._requests:
                self._idle.set()
