"""Streams that occupy places, flood, or open and close fast, and requests that are valid and expensive."""

import asyncio
import itertools

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import SMALL_REQUEST, Counts, Target, ask, ask_at_rate, count_end
from loadtest.bench.attacks.http2 import Http2Connection, Stream, framed

_IDLE_STREAMS, _IDLE_CONNECTIONS = 20_000, 16
_OPENED_AT_ONCE, _OPENING_PAUSE_S = 500, 0.05
_RESETS, _RESETS_EVERY_S, _RESET_AT_ONCE = 20_000, 2.0, 200
_FLOOD_PREFIX, _FLOOD_PAUSE_EVERY = "x = 1\n" * 1_000, 20
_BIG_PER_S, _BIG_LINES = 20, 1500


async def idle_sessions(target: Target, counts: Counts) -> None:
    """Hold as many Session streams as the server allows."""
    connections: list[Http2Connection] = []
    streams: list[Stream] = []
    while len(streams) < _IDLE_STREAMS and len(connections) < _IDLE_CONNECTIONS:
        connection = await Http2Connection.open(target.address)
        connections.append(connection)
        counts["connections"] = len(connections)
        while len(streams) < _IDLE_STREAMS and connection.is_open and len(connection.streams) < connection.max_streams:
            streams.append(connection.call("Session"))
            if len(streams) % _OPENED_AT_ONCE == 0:
                await connection.drain()
                await asyncio.sleep(_OPENING_PAUSE_S)
        await connection.drain()
    while any(connection.is_open for connection in connections):
        counts["held"] = sum(stream.status is None for stream in streams)
        await asyncio.sleep(_OPENING_PAUSE_S)


async def resets(target: Target, counts: Counts) -> None:
    """Open calls and reset them at once."""
    connection = await Http2Connection.open(target.address)
    for number in itertools.count(1):
        stream = connection.call("Complete")
        await stream.send(SMALL_REQUEST, ends=True)
        stream.reset()
        counts["reset"] += 1
        if not connection.is_open:
            return
        if number % _RESET_AT_ONCE == 0:
            await asyncio.sleep(0 if number % _RESETS else _RESETS_EVERY_S)


async def flood(target: Target, counts: Counts) -> None:
    """Send valid requests on one stream as fast as the server reads."""
    async with await Http2Connection.open(target.address) as connection:
        stream = connection.call("Session")
        for sequence in itertools.count(1):
            request = pb.CompleteRequest(session_id="flood", sequence=sequence, prefix=_FLOOD_PREFIX)
            await stream.send(framed(pb.SessionRequest(complete=request).SerializeToString()))
            counts["sent"] += 1
            if stream.status is not None:
                break
            if sequence % _FLOOD_PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        count_end(counts, stream)


async def big_prompts(target: Target, counts: Counts, users: int = 1) -> None:
    """Ask for completions in new documents that fill the prompt, as so many users in turn."""
    connection = await Http2Connection.open(target.address)

    async def call(sequence: int) -> None:
        user = f"user-{sequence % users}"
        request = pb.CompleteRequest(
            session_id=user,
            sequence=sequence,
            document_uri=f"file:///{sequence}.py",
            language_id="python",
            prefix="".join(f"value_{sequence}_{line} = {line}\n" for line in range(_BIG_LINES)),
            trigger=pb.TRIGGER_EXPLICIT,
            mode=pb.MODE_MULTI_LINE,
        )
        await ask(connection, framed(request.SerializeToString()), counts, (("x-user-id", user),))

    await ask_at_rate(_BIG_PER_S, call, connection)
