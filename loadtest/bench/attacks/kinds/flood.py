"""One session stream that asks as fast as it can."""

import asyncio

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import Attack
from loadtest.bench.attacks.http2 import Http2Connection, framed

_PREFIX = "x = 1\n" * 1_000
_PAUSE_EVERY = 20


class Flood(Attack):
    """Valid requests of 6 KB on one stream, without waiting for any answer."""

    name = "flood"
    about = "one Session stream with valid requests of 6 KB, as fast as the server reads"

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        stream = connection.call("Session")
        sequence = 0
        while stream.status is None:
            sequence += 1
            request = pb.CompleteRequest(session_id="flood", sequence=sequence, prefix=_PREFIX)
            await stream.send(framed(pb.SessionRequest(complete=request).SerializeToString()))
            self.counts["sent"] += 1
            if sequence % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        self.count_end(stream)
        await connection.close()
