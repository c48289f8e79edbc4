"""Session streams that occupy every place and send no request.

A flood of calls over many connections is another attack: here the number of connections is small.
"""

import asyncio

from loadtest.bench.attacks.attack import Attack
from loadtest.bench.attacks.http2 import Http2Connection, Stream

_STREAMS = 20_000
_MAX_CONNECTIONS = 16
_AT_ONCE = 500
_PAUSE_S = 0.05


class IdleSessions(Attack):
    """20,000 streams on one connection, or as many as the server allows on 16."""

    name = "idle_sessions"
    about = "20,000 Session streams without a request, on one connection (or as many as the server allows on 16)"

    async def run(self) -> None:
        """See Attack."""
        connections: list[Http2Connection] = []
        streams: list[Stream] = []
        for _ in range(_MAX_CONNECTIONS):
            connection = await Http2Connection.open(self.address)
            connections.append(connection)
            self.counts["connections"] = len(connections)
            while len(streams) < _STREAMS and connection.is_open and connection.num_streams < connection.max_streams:
                streams.append(connection.call("Session"))
                if len(streams) % _AT_ONCE == 0:
                    await connection.drain()
                    await asyncio.sleep(_PAUSE_S)
            await connection.drain()
            if len(streams) >= _STREAMS:
                break
        while any(connection.is_open for connection in connections):
            self.counts["held"] = sum(stream.status is None for stream in streams)
            await asyncio.sleep(_PAUSE_S)
