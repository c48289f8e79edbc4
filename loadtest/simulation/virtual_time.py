"""An event loop whose time jumps to the next timer whenever it has nothing to do: hours pass in milliseconds.

For code that waits by asyncio alone. Nothing else may wake it: no sockets, no threads. Order and times are the same in
every run.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DeadlockError(Exception):
    """Every task waits, and no timer is set that could wake one."""


class _JumpingSelector(selectors.SelectSelector):
    """Lets virtual time pass where the loop would block."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("every task waits and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time, which starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._jumping.now


class LoopClock:
    """The running loop's time as a `Clock`."""

    def now(self) -> float:
        """Return the loop's seconds."""
        return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time from 0.

    Raises:
        DeadlockError: it waits for what can't come.

    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
