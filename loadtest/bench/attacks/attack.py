"""The base class of the attacks, and the parts that several of them share."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar

from loadtest.bench.attacks.http2 import Http2Connection, Stream

MIB = 1024 * 1024
RESOURCE_EXHAUSTED = 8
_ANSWER_S = 10.0
_SMALLEST_BYTES = 4096


class Attack(ABC):
    """An attack on a server, which runs until it ends or is cancelled."""

    name: ClassVar[str]
    """Name on the command line."""
    about: ClassVar[str]
    """One-line description."""
    overrides: ClassVar[tuple[str, ...]] = ()
    """Settings of the server that the attack needs."""

    def __init__(self, address: str) -> None:
        """Attack the server at HOST:PORT."""
        self.address = address
        self.counts: Counter[str] = Counter()
        """Counts of the attack's actions and their results, for the report."""

    @abstractmethod
    async def run(self) -> None:
        """Attack until cancelled. A lost connection (OSError) restarts the attack."""

    async def keep_on(self) -> None:
        """Run, and restart when the server closes the connection."""
        while True:
            try:
                await self.run()
            except* OSError:
                self.counts["connections_lost"] += 1
            await asyncio.sleep(0.01)

    def count_end(self, stream: Stream) -> None:
        """Count the end of a call."""
        self.counts[f"status_{'none' if stream.status in {None, -1} else stream.status}"] += 1


async def largest_accepted(connection: Http2Connection, first_bytes: int, message_of: "MessageOf") -> int:
    """Return the size of a message that the server accepts: `first_bytes`, halved until it is not too large.

    An attacker would find that out too.
    """
    size = first_bytes
    while size > _SMALLEST_BYTES:
        stream = connection.call("Complete", message_of.metadata)
        await stream.send(message_of(size), ends=True)
        await stream.ended(_ANSWER_S)
        if stream.status != RESOURCE_EXHAUSTED or "larger than max" not in stream.details:
            break
        size //= 2
    return size


class MessageOf(ABC):
    """Makes a hostile message of about a given size, framed."""

    metadata: tuple[tuple[str, str], ...] = ()

    @abstractmethod
    def __call__(self, size: int) -> bytes:
        """Return the bytes that go on the wire."""
