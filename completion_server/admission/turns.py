"""Bounds the messages that are received at the same time, those of one address and those of all."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from completion_server.admission.identity import Identity
from completion_server.core.errors import DeadlineError

T = TypeVar("T")

_MAX_RECEIVING = 128
"""Calls of one address that are received at the same time, as each may hold nearly a whole message. Others wait."""
_MAX_RECEIVING_IN_ALL = 1024
"""Of all addresses. A message takes milliseconds, so one that must make room for others is being held back."""


class ReceiveTurns:
    """The turns of all addresses. Waiting calls hold little memory."""

    def __init__(self, max_receiving: int = _MAX_RECEIVING_IN_ALL) -> None:
        """Allow `max_receiving` turns at once: a further one ends the oldest."""
        self._max_receiving = max_receiving
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._receiving: dict[asyncio.Timeout, None] = {}
        """The turns that calls have now, the oldest first."""

    async def take(self, identity: Identity, receive: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Return what `receive` returns, which is called when it is the turn of the caller's address.

        Raises:
            DeadlineError: the message was not received before too many others came.
            TimeoutError: it was not received within `timeout_s`.

        """
        turns = self._of_address(identity)
        if turns is None:
            return await self._receive(receive, timeout_s)
        async with turns:
            return await self._receive(receive, timeout_s)

    async def _receive(self, receive: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
        turn = asyncio.timeout(timeout_s)
        try:
            async with turn:
                self._begin(turn)
                return await receive()
        except TimeoutError:
            if turn in self._receiving or not turn.expired():
                raise
            msg = f"the request was not received before {self._max_receiving} others came"
            raise DeadlineError(msg) from None
        finally:
            self._receiving.pop(turn, None)

    def _begin(self, turn: asyncio.Timeout) -> None:
        self._receiving[turn] = None
        if len(self._receiving) > self._max_receiving:
            oldest = next(iter(self._receiving))
            del self._receiving[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())

    def _of_address(self, identity: Identity) -> asyncio.Semaphore | None:
        """Return the turns of the caller's address. Verified users and Unix sockets need none."""
        peer = identity.limited_peer
        if not peer:
            return None
        turns = self._turns.get(peer)
        if turns is None:
            turns = self._turns[peer] = asyncio.Semaphore(_MAX_RECEIVING)
        return turns
