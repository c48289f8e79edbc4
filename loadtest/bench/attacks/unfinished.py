"""Messages that do harm when they are received or parsed, and messages and connections that never end."""

import asyncio
import contextlib
import gzip
from collections.abc import Callable
from contextlib import AsyncExitStack

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import ADDRESSES, MIB, Counts, Target, ask, hold, source_of
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, connect, framed
from loadtest.bench.runner.contest import AsyncClosing

_RESOURCE_EXHAUSTED = 8
_SMALLEST_BYTES = 4096
_LARGEST_BYTES = 16 * MIB - 1024
_BOMB_EVERY_S = 0.5
_EMPTY_SNIPPET = b"\x3a\x00"
_LONG_CALLERS, _LONG_BYTES = 4, 15 * MIB
_HALF_STREAMS = 24


async def _largest_accepted(
    connection: Http2Connection,
    first_bytes: int,
    message_of: Callable[[int], bytes],
    counts: Counts,
    metadata: Metadata = (),
) -> bytes:
    """Return a message of a size that the server accepts: `first_bytes`, halved until it is not too large.

    An attacker would find that out too.
    """
    size = first_bytes
    while size > _SMALLEST_BYTES:
        stream = await connection.ask(message_of(size), metadata)
        if stream.status != _RESOURCE_EXHAUSTED or "larger than max" not in stream.details:
            break
        size //= 2
    counts["message_kib"] = size // 1024
    return message_of(size)


def _bomb(size: int) -> bytes:
    """Return a request with as many empty snippets as fit in a size."""
    head = pb.CompleteRequest(session_id="bomb", sequence=1, prefix="x = ").SerializeToString()
    message = head + _EMPTY_SNIPPET * ((size - len(head)) // len(_EMPTY_SNIPPET))
    return framed(gzip.compress(message), is_compressed=True)


def _long_prefix(size: int) -> bytes:
    """Return a request with a prefix that fills a message of a size."""
    return framed(pb.CompleteRequest(session_id="long", sequence=1, prefix="x" * size).SerializeToString())


async def snippet_bomb(target: Target, counts: Counts) -> None:
    """Send messages of empty snippets that are small on the wire."""
    connection, metadata = await Http2Connection.open(target.address), (("grpc-encoding", "gzip"),)
    data = await _largest_accepted(connection, _LARGEST_BYTES, _bomb, counts, metadata)
    while connection.is_open:
        await asyncio.gather(ask(connection, data, counts, metadata), asyncio.sleep(_BOMB_EVERY_S))


async def refused_prefixes(target: Target, counts: Counts) -> None:
    """Send prefixes that are too long in a loop."""

    async def call_on() -> None:
        connection = await Http2Connection.open(target.address)
        data = await _largest_accepted(connection, _LONG_BYTES, _long_prefix, counts)
        while connection.is_open:
            await ask(connection, data, counts)

    async with asyncio.TaskGroup() as group:
        for _ in range(_LONG_CALLERS):
            group.create_task(call_on())


async def half_messages(target: Target, counts: Counts) -> None:
    """Hold streams, half of them sessions; one that the server ends is opened again."""
    connection = await Http2Connection.open(target.address)
    data = (await _largest_accepted(connection, _LARGEST_BYTES, _long_prefix, counts))[:-1]
    async with asyncio.TaskGroup() as group:
        for number in range(_HALF_STREAMS):
            group.create_task(hold(connection, "Session" if number % 2 else "Complete", data, counts))


_SLOW_CONNECTIONS = 1_000
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
        for number in range(_SLOW_CONNECTIONS):
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
