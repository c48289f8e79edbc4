"""The contestants of a benchmark and their turns: all are live in one run, and one runs at a time.

The others are suspended meanwhile. So a drift of the machine affects all of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import ParamSpec, Protocol, Self, TypeVar

from rich.console import Console

from loadtest.processes.child import Child

_SETTLE_S = 0.5
"""Time from the start of a turn to its first request: timers that were due are late, and a server closes connections
that have been idle for long."""

P = ParamSpec("P")
T = TypeVar("T")


class Pausable(Protocol):
    """A server's processes, which can be suspended."""

    def pause(self) -> None:
        """Suspend them."""
        ...

    def resume(self) -> None:
        """Continue after `pause`."""
        ...


class AsyncClosing:
    """Something that is closed when its context is left."""

    async def aclose(self) -> None:
        """Close it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class Contestant(AsyncClosing):
    """A running server, a peer, or a bare part of a server. Leaving its context stops its processes."""

    name: str
    _child: Child

    @property
    def process(self) -> Child:
        """The process, with those that it has started."""
        return self._child

    def _begin(self, child: Child, wait: Callable[[Child], T]) -> T:
        """Take a process and return the result of waiting for its start. One that does not come up is stopped."""
        self._child = child
        try:
            return wait(child)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the processes."""
        self.process.stop()

    async def aclose(self) -> None:
        """Close connections and stop the processes."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


ContestantT = TypeVar("ContestantT", bound=Contestant)


class Contest(AsyncExitStack):
    """The contestants of a run, of which one runs at a time; the others are suspended. Leaving it stops them.

    A server that rests still uses CPU time: heartbeats, timers, and vLLM's worker, which spins on a core for a second
    after its last step. On a small machine all of that would count for the server that is measured.
    """

    def __init__(self, console: Console, settle_s: float = _SETTLE_S) -> None:
        super().__init__()
        self.console = console
        self._settle_s = settle_s
        self._active: Pausable | None = None

    async def start(self, name: str, make: Callable[P, ContestantT], *args: P.args, **kwargs: P.kwargs) -> ContestantT:
        """Start a contestant, which is suspended until it has its turn. Raises StartError if it did not start."""
        with self.console.status(f"starting: {name}"):
            contestant = make(*args, **kwargs)
            await self.enter_async_context(contestant)
        contestant.process.pause()
        return contestant

    async def give_turn(self, server: Pausable) -> None:
        """Suspend the server whose turn it was, and let another one run."""
        if server is self._active:
            return
        if self._active is not None:
            self._active.pause()
        self._active = server
        server.resume()
        await asyncio.sleep(self._settle_s)


def rotated(items: Sequence[T], number: int) -> list[T]:
    """Return the items in the order of round `number`: each is as often first as last."""
    first = number % len(items)
    return [*items[first:], *items[:first]]
