"""Messages that do harm when they are received or parsed, and messages that never end."""

import asyncio
import gzip
from collections.abc import Callable

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import MIB, Counts, Target, ask, hold
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, framed

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
