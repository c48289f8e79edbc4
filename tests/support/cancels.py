"""Cancels a task at each of its awaits, one run for each, and checks that it ends."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import coroutine
from typing import Any

ENDS_WITHIN_S = 1.0
"""How long a cancelled task may take to end, in virtual time."""
REACHED_WITHIN_S = 30.0
"""How long a task may take to reach an await; for machines that are busy with other things."""
DONE_WITHIN_S = 1.0
"""How long an await may take before it counts as one that is done only by a cancel."""

CANCELLED_WITHIN_S = 10.0
"""How long a test waits in real time for a task that it has cancelled; for machines that are busy with other things."""

LongLived = Callable[[], AbstractAsyncContextManager[Coroutine[Any, Any, Any]]]
"""Makes what runs until it is cancelled, with everything that it needs."""


class _CancelAt:
    """Cancels a task at one of the awaits of itself and of the tasks that are made meanwhile.

    If `is_late`, what is awaited is done when the cancel comes: `asyncio.wait_for` of Python 3.11 swallows it then.
    """

    def __init__(self, number: int, *, is_late: bool) -> None:
        self._number = number
        self._is_late = is_late
        self._num_awaits = 0
        self._task: asyncio.Task[Any] | None = None
        self.is_reached = asyncio.Event()
        self.is_sent = asyncio.Event()

    def start(self, running: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine in the task to be cancelled."""
        asyncio.get_running_loop().set_task_factory(self._make_task)
        self._task = asyncio.create_task(running)
        return self._task

    def _make_task(self, loop: Any, running: Any, **options: Any) -> "asyncio.Task[Any]":
        async def run() -> Any:
            return await self._run(running)

        return asyncio.Task(run(), loop=loop, **options)

    @coroutine
    def _run(self, running: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                awaited = running.send(None) if error is None else running.throw(error)
            except StopIteration as end:
                return end.value
            self._num_awaits += 1
            if is_due := self._num_awaits == self._number:
                self.is_reached.set()
            error = yield from self._wait(awaited, cancels=is_due and not self._is_late)
            if is_due and self._is_late:
                error = yield from self._wait(None, cancels=True)

    def _wait(self, awaited: Any, *, cancels: bool) -> Generator[Any, Any, BaseException | None]:
        """Wait as the coroutine does, and return what is raised into it."""
        try:
            if cancels and self._task is not None:
                self._task.cancel()
                self.is_sent.set()
            yield awaited
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            return error
        return None


async def check_ends_at_each_await(
    long_lived: LongLived,
    num_awaits: int,
    reached_within_s: float = REACHED_WITHIN_S,
    ends_within_s: float = CANCELLED_WITHIN_S,
) -> None:
    """Check that a long-lived task ends within `ends_within_s`, whichever of its first awaits it is cancelled at."""
    for number in range(1, num_awaits + 1):
        for is_late in (False, True):
            async with long_lived() as running:
                await _check_ends(running, number, reached_within_s, ends_within_s, is_late=is_late)


async def _check_ends(
    running: Coroutine[Any, Any, Any], number: int, reached_within_s: float, ends_within_s: float, *, is_late: bool
) -> None:
    when = f"{running.__qualname__}, cancelled at await {number}{' after what it awaits was done' * is_late}"
    cancel = _CancelAt(number, is_late=is_late)
    reached, sent = (asyncio.create_task(each.wait()) for each in (cancel.is_reached, cancel.is_sent))
    task = cancel.start(running)
    try:
        await asyncio.wait([task, reached], timeout=reached_within_s, return_when=asyncio.FIRST_COMPLETED)
        assert reached.done(), f"{when}: was not reached within {reached_within_s} s; {task}"
        await asyncio.wait([task, sent], timeout=DONE_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        if not sent.done():
            task.cancel()
        await asyncio.wait([task], timeout=ends_within_s)
        assert task.done(), f"{when}: did not end within {ends_within_s} s"
        assert task.cancelled(), f"{when}: ended as if it was not cancelled; {task}"
    finally:
        asyncio.get_running_loop().set_task_factory(None)
        for each in (reached, sent, task):
            each.cancel()
        await asyncio.wait([reached, sent, task], timeout=ends_within_s)


async def cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, and wait until it has ended; fail if it goes on."""
    task.cancel()
    await asyncio.wait([task], timeout=CANCELLED_WITHIN_S)
    assert task.done(), f"{task} did not end within {CANCELLED_WITHIN_S} s after it was cancelled"
