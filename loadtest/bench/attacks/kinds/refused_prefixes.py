"""Requests that the server receives whole and then refuses: prefixes far beyond the limit."""

import asyncio

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import MIB, Attack, MessageOf, largest_accepted
from loadtest.bench.attacks.http2 import Http2Connection, framed

_CALLERS = 4
_SIZE = 15 * MIB
_ANSWER_S = 5.0


class LongPrefix(MessageOf):
    """A request with a prefix that fills a message of the given size."""

    def __call__(self, size: int) -> bytes:
        """Return the bytes that go on the wire."""
        return framed(pb.CompleteRequest(session_id="long", sequence=1, prefix="x" * size).SerializeToString())


class RefusedPrefixes(Attack):
    """Four callers, each with a connection of its own, one request after another."""

    name = "refused_prefixes"
    about = "4 callers in a loop, each with a prefix of 15 MiB (or the server's limit)"

    async def run(self) -> None:
        """See Attack."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_CALLERS):
                group.create_task(self._call_on())

    async def _call_on(self) -> None:
        connection = await Http2Connection.open(self.address)
        long_prefix = LongPrefix()
        size = await largest_accepted(connection, _SIZE, long_prefix)
        self.counts["message_kib"] = size // 1024
        data = long_prefix(size)
        while connection.is_open:
            stream = connection.call("Complete")
            await stream.send(data, ends=True)
            self.counts["sent"] += 1
            await stream.ended(_ANSWER_S)
            self.count_end(stream)
