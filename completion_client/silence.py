"""Detects a silent server: one that sends nothing although an answer is due, as when the network drops packets."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from completion_client.errors import ConnectionLostError

AliveAt = Callable[[float, float], Awaitable[float | None]]
"""Takes the loop's time since when nothing came and a limit in seconds.

Returns the time of the server's last message on any call of the connection; None if it has sent none since, not even
when it was asked.
"""


class SilenceError(ConnectionLostError):
    """A server sent nothing and did not answer in time when it was asked. It may be fine: the client may be late."""

    @classmethod
    def of(cls, address: str, silence_s: float) -> Self:
        """Return the error of a server that has been silent for so long."""
        return cls(f"{address} has sent nothing for {silence_s * 1000:.0f} ms")


@dataclass(slots=True)
class SilenceRecord:
    """The silent requests of an endpoint or a connection, one after another without a sign of life. Pure."""

    num_silent: int = 0
    began_at_s: float = math.inf
    """Loop time at which the silence began."""
    noted_at_s: float = -math.inf
    """Loop time at which the newest silent request was noted."""

    def note(self, since_s: float, heard_at_s: float, now_s: float) -> None:
        """Note a request to which nothing came from `since_s` to `now_s`; anything else came last at `heard_at_s`."""
        if heard_at_s > self.noted_at_s:
            self.num_silent, self.began_at_s = 0, since_s
        self.num_silent += 1
        self.began_at_s = min(self.began_at_s, since_s)
        self.noted_at_s = now_s


class SilenceGuard:
    """Watches one call or stream while something is due on it.

    After half of the limit without a message the guard asks for a health check. The server is silent if no message and
    no health answer arrives in the other half, so a server that is only slow is kept. Messages to other calls count. A
    request that has begun waits until the guard gives the server up; a message before that starts the guard again.
    """

    def __init__(
        self, alive_at_s: AliveAt, on_silent: Callable[[], float | None], on_given_up: Callable[[float], object]
    ) -> None:
        """Call `on_silent`, which returns the loop's time at which to call `on_given_up`; None is never.

        `on_given_up` gets the length of the silence in seconds.
        """
        self.is_silent = False
        """Whether the server was found silent, and nothing has come since."""
        self._alive_at_s = alive_at_s
        self._on_silent = on_silent
        self._on_given_up = on_given_up
        self._loop = asyncio.get_running_loop()
        self._heard_at_s = self._limit_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def expect_nowait(self, limit_s: float) -> None:
        """Begin to watch, with a limit; or go on watching, with this limit if it is the shorter one."""
        if self._asking is not None and not self._asking.done():
            return
        if self._timer is None:
            self._heard_at_s, self._limit_s = self._loop.time(), limit_s
        elif limit_s >= self._limit_s:
            return
        self._limit_s = limit_s
        self._watch()

    def heard_nowait(self) -> None:
        """Note that something came."""
        self._heard_at_s = self._loop.time()
        if self.is_silent:
            self.is_silent = False
            if self._timer is not None:
                self._watch()

    def stop_nowait(self) -> None:
        """Watch no longer: nothing is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None and self._asking is not asyncio.current_task():
            self._asking.cancel()
        self._asking = None

    def _watch(self) -> None:
        """Ask after half of the limit without a message."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(max(self._loop.time(), self._heard_at_s + self._limit_s / 2), self._look)

    def _look(self) -> None:
        if self._heard_at_s + self._limit_s / 2 > self._loop.time():
            self._watch()
        else:
            self._timer = None
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        since_s, asked_at_s = self._heard_at_s, self._loop.time()
        alive_at_s = await self._alive_at_s(since_s, self._limit_s / 2)
        self._asking = None
        if alive_at_s is None and self._heard_at_s == since_s:
            self.is_silent = True
            given_up_at_s = self._on_silent()
            if given_up_at_s is not None:
                self._timer = self._loop.call_at(given_up_at_s, self._give_up)
            return
        self._heard_at_s = max(self._heard_at_s, alive_at_s or since_s)
        if alive_at_s is not None and alive_at_s >= asked_at_s:
            self._limit_s *= 2  # it is slow, not silent: ask less often
        self._watch()

    def _give_up(self) -> None:
        self._timer = None
        self._on_given_up(self._loop.time() - self._heard_at_s)
