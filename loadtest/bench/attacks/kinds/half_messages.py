"""Messages that never end: each stream lacks its last byte, so the server holds the bytes received so far."""

import asyncio

from loadtest.bench.attacks.attack import MIB, Attack, largest_accepted
from loadtest.bench.attacks.http2 import Http2Connection, Stream
from loadtest.bench.attacks.kinds.refused_prefixes import LongPrefix

_STREAMS = 24
_SIZE = 16 * MIB - 1024
_HELD_S = 3600.0


class HalfMessages(Attack):
    """24 streams on one connection, half of them sessions; one that the server ends is opened again."""

    name = "half_messages"
    about = "24 streams on one connection, each with a message of 16 MiB (or the server's limit) less a byte"

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        size = await largest_accepted(connection, _SIZE, LongPrefix())
        self.counts["message_kib"] = size // 1024
        data = LongPrefix()(size)[:-1]
        async with asyncio.TaskGroup() as group:
            for number in range(_STREAMS):
                group.create_task(self._hold(connection, "Session" if number % 2 else "Complete", data))

    async def _hold(self, connection: Http2Connection, method: str, data: bytes) -> None:
        while connection.is_open:
            stream: Stream = connection.call(method)
            self.counts["held" if await stream.send(data) else "cut"] += 1
            await stream.ended(_HELD_S)
            self.count_end(stream)
