"""Detects a silent server: one that sends nothing although an answer is due, as when the network drops packets."""

import asyncio
from collections.abc import Awaitable, Callable
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
        self.now = asyncio.get_running_loop().time
        self._heard = asyncio.Event()
        self._heard_at_s = self._limit_s = 0.0
        self._is_asking = False
        self._watching: asyncio.Task[None] | None = None

    def expect_nowait(self, limit_s: float) -> None:
        """Begin to watch, with a limit; or go on watching, with this limit if it is the shorter one."""
        if self._watching is None or self._watching.done():
            self._heard_at_s = self.now()
        elif self._is_asking or self.is_silent or limit_s >= self._limit_s:
            return
        else:
            self._watching.cancel()
        self._limit_s, self._is_asking = limit_s, False
        self._watching = asyncio.create_task(self._watch())

    def heard_nowait(self) -> None:
        """Note that something came."""
        self._heard_at_s = self.now()
        self.is_silent = False
        self._heard.set()

    def stop_nowait(self) -> None:
        """Watch no longer: nothing is due."""
        if self._watching is not None:
            self._watching.cancel()
        self._watching = None
        self._is_asking = False

    async def _watch(self) -> None:
        while True:
            wait_s = self._heard_at_s + self._limit_s / 2 - self.now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            since_s, asked_at_s = self._heard_at_s, self.now()
            self._is_asking = True
            alive_at_s = await self._alive_at_s(since_s, self._limit_s / 2)
            self._is_asking = False
            if alive_at_s is not None:
                self._heard_at_s = max(self._heard_at_s, alive_at_s)
                if alive_at_s >= asked_at_s:
                    self._limit_s *= 2  # it is slow, not silent: ask less often
            elif self._heard_at_s == since_s and not await self._is_heard_again():
                self._watching = None
                self._on_given_up(self.now() - since_s)
                return

    async def _is_heard_again(self) -> bool:
        """Wait for a message; return whether one came before the server is given up."""
        self.is_silent = True
        self._heard.clear()
        try:
            async with asyncio.timeout_at(self._on_silent()):
                await self._heard.wait()
        except TimeoutError:
            return False
        return True
