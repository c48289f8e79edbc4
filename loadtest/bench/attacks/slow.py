"""Slow clients (slowloris): connections that begin what they never end, and messages held back from many addresses."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import ADDRESSES, MIB, Counts, Target, hold, source_of
from loadtest.bench.attacks.http2 import Http2Connection, connect, framed
from loadtest.bench.runner.schedule import AsyncClosing

_CONNECTIONS = 1_000
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
BEGINNINGS = (b"", _PREFACE[:10], _PREFACE, _CLIENT_HELLO)
"""What a slow client sends to a port of HTTP/2 or TLS, and no more."""
HTTP_BEGINNINGS = (b"", b"POST /infill HTTP/1.1\r\nhost: loc", b"POST /infill HTTP/1.1\r\ncontent-length: 99\r\n\r\n{")
_STREAMS = 16
_AGAIN_S = 0.1


class SlowConnection(AsyncClosing):
    """A connection that has sent the beginning of something."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open` instead."""
        self.reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str, beginning: bytes) -> "SlowConnection":
        """Connect and send the beginning.

        Raises:
            OSError: no server listens, or the server hangs up.

        """
        reader, writer = await connect(address)
        writer.write(beginning)
        return cls(reader, writer)

    async def aclose(self) -> None:
        """Hang up."""
        self._writer.close()
        await asyncio.sleep(0)


async def slow_connections(target: Target, counts: Counts) -> None:
    """Hold 1,000 connections of each listener; one that the server closes is opened again."""

    async def reopen(address: str, beginning: bytes) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with await SlowConnection.open(address, beginning) as connection:
                    counts["opened"] += 1
                    while await connection.reader.read(1024):
                        pass
            counts["closed_by_the_server"] += 1
            await asyncio.sleep(_AGAIN_S)

    async with asyncio.TaskGroup() as group:
        for number in range(_CONNECTIONS):
            group.create_task(reopen(target.address, BEGINNINGS[number % len(BEGINNINGS)]))
            group.create_task(reopen(target.http_address, HTTP_BEGINNINGS[number % len(HTTP_BEGINNINGS)]))


async def held_messages(target: Target, counts: Counts) -> None:
    """Hold messages of a MiB less a byte, 16 from each of 64 addresses; one that is ended is sent again."""
    message = pb.CompleteRequest(session_id="held", sequence=1, prefix="x" * MIB)
    data = framed(message.SerializeToString())[:-1]
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for number in range(ADDRESSES):
            connection = await Http2Connection.open(target.address, source_of(number))
            await stack.enter_async_context(connection)
            for _ in range(_STREAMS):
                group.create_task(hold(connection, "Complete", data, counts))
