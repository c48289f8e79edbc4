"""Bounds the messages that are received from one address at the same time."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from weakref import WeakValueDictionary

from completion_server.admission.identity import Identity

_MAX_RECEIVING = 128
"""Calls of one address that are received at the same time, as each may hold nearly a whole message. Others wait."""


class ReceiveTurns:
    """The turns of all addresses. Waiting calls hold little memory."""

    def __init__(self) -> None:
        """Begin without any."""
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, identity: Identity) -> AbstractAsyncContextManager[None]:
        """Return the context in which a message may be received. Verified users and Unix sockets need no turn."""
        peer = identity.limited_peer
        if not peer:
            return nullcontext()
        turns = self._turns.get(peer)
        if turns is None:
            turns = self._turns[peer] = asyncio.Semaphore(_MAX_RECEIVING)
        return turns
