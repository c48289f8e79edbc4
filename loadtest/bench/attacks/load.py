"""Requests of honest form that are too many: overload, cancelled ones, idle, reset and flooded streams, big prompts."""

import asyncio
import itertools
from contextlib import AsyncExitStack

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import (
    ADDRESSES,
    SMALL_REQUEST,
    Counts,
    Target,
    ask,
    ask_at_rate,
    count_end,
    source_of,
    typed,
)
from loadtest.bench.attacks.http2 import Http2Connection, Stream, framed

CAPACITY_PER_S = 60.0
"""Requests like those of `typed` that the scripted engine of the benchmark ends in a second, about."""
UNLIMITED = ("admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.users_per_peer=0")
"""Settings of a server that serves every request of one attacker."""
_CANCELLED_USERS = 100


def _framed(user: str, sequence: int) -> bytes:
    return framed(typed(user, sequence, without_completion_cache=True).SerializeToString())


async def overload(target: Target, counts: Counts, times: float = 3.0) -> None:
    """Ask `times` the engine's capacity, each request as another of 4 users at each of 64 addresses."""
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(await Http2Connection.open(target.address, source_of(number)))
            for number in range(ADDRESSES)
        ]

        async def call(number: int) -> None:
            place = number % (4 * ADDRESSES)
            user = f"user-{place}"
            await ask(connections[place % ADDRESSES], _framed(user, number), counts, (("x-user-id", user),))

        await ask_at_rate(times * CAPACITY_PER_S, call, *connections)


async def cancels(target: Target, counts: Counts) -> None:
    """Ask without end as 100 users of one connection, each of which cancels every second request at its first text."""
    numbers = itertools.count(1)
    async with await Http2Connection.open(target.address) as connection, asyncio.TaskGroup() as group:

        async def ask_on(user: str) -> None:
            metadata = (("x-user-id", user),)
            while connection.is_open:
                number = next(numbers)
                if number % 2 == 0:
                    await ask(connection, _framed(user, number), counts, metadata)
                    continue
                stream = connection.call("Complete", metadata)
                await stream.send(_framed(user, number), ends=True)
                await stream.answered()
                stream.reset()
                counts["cancelled"] += 1

        for user in range(_CANCELLED_USERS):
            group.create_task(ask_on(f"user-{user}"))


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
