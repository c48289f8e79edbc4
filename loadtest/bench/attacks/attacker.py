"""The attacks, each a function in ATTACKS, and the process that runs one: `python -m loadtest.bench.attacks.attacker`.

It attacks from an address of its own (127.0.0.2), so that limits for each peer can tell it from the honest users. A
line on standard input ends it; it then prints its counts.
"""

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import click

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, Stream, framed

_NICENESS = 10
"""Niceness of the process: a real attacker has another machine and takes no CPU from the server."""
_MIB = 1024 * 1024
_RESOURCE_EXHAUSTED = 8
_ANSWER_S = 5.0
_SMALLEST_BYTES = 4096
_LARGEST_BYTES = 16 * _MIB - 1024

_BOMB_EVERY_S = 0.5
_EMPTY_SNIPPET = b"\x3a\x00"
_LONG_CALLERS, _LONG_BYTES = 4, 15 * _MIB
_HALF_STREAMS, _HELD_S = 24, 3600.0
_IDLE_STREAMS, _IDLE_CONNECTIONS = 20_000, 16
_OPENED_AT_ONCE, _OPENING_PAUSE_S = 500, 0.05
_RESETS, _RESETS_EVERY_S, _RESET_AT_ONCE = 20_000, 2.0, 200
_FLOOD_PREFIX, _FLOOD_PAUSE_EVERY = "x = 1\n" * 1_000, 20
_BIG_PER_S, _BIG_LINES = 20, 1500

Counts = Counter[str]
"""Counts of an attack's actions and their results, for the report."""


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack on a server."""

    about: str
    """One-line description."""
    run: Callable[[str, Counts], Awaitable[None]]
    """Attacks the server at HOST:PORT until it is cancelled, or ends."""
    overrides: tuple[str, ...] = ()
    """Settings of the server that the attack needs."""


async def keep_on(attack: Attack, address: str, counts: Counts) -> None:
    """Run an attack, and run it again when the server closes the connection."""
    while True:
        try:
            await attack.run(address, counts)
        except* OSError:
            counts["connections_lost"] += 1
        await asyncio.sleep(0.01)


def _count_end(counts: Counts, stream: Stream) -> None:
    counts[f"status_{'none' if stream.status in {None, -1} else stream.status}"] += 1


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
        stream = connection.call("Complete", metadata)
        await stream.send(message_of(size), ends=True)
        await stream.ended(2 * _ANSWER_S)
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


async def _snippet_bomb(address: str, counts: Counts) -> None:
    connection, metadata = await Http2Connection.open(address), (("grpc-encoding", "gzip"),)
    data = await _largest_accepted(connection, _LARGEST_BYTES, _bomb, counts, metadata)
    while connection.is_open:
        await _send_one(connection, data, counts, metadata, _BOMB_EVERY_S)


async def _refused_prefixes(address: str, counts: Counts) -> None:
    async def call_on() -> None:
        connection = await Http2Connection.open(address)
        data = await _largest_accepted(connection, _LONG_BYTES, _long_prefix, counts)
        while connection.is_open:
            await _send_one(connection, data, counts)

    async with asyncio.TaskGroup() as group:
        for _ in range(_LONG_CALLERS):
            group.create_task(call_on())


async def _send_one(
    connection: Http2Connection, data: bytes, counts: Counts, metadata: Metadata = (), pause_s: float = 0.0
) -> None:
    """Send a message as a whole call and wait for its end, `pause_s` at least."""
    stream = connection.call("Complete", metadata)
    await stream.send(data, ends=True)
    counts["sent"] += 1
    await asyncio.sleep(pause_s)
    await stream.ended(_ANSWER_S)
    _count_end(counts, stream)


async def _half_messages(address: str, counts: Counts) -> None:
    """Hold streams, half of them sessions; one that the server ends is opened again."""
    connection = await Http2Connection.open(address)
    data = (await _largest_accepted(connection, _LARGEST_BYTES, _long_prefix, counts))[:-1]

    async def hold(method: str) -> None:
        while connection.is_open:
            stream = connection.call(method)
            counts["held" if await stream.send(data) else "cut"] += 1
            await stream.ended(_HELD_S)
            _count_end(counts, stream)

    async with asyncio.TaskGroup() as group:
        for number in range(_HALF_STREAMS):
            group.create_task(hold("Session" if number % 2 else "Complete"))


async def _idle_sessions(address: str, counts: Counts) -> None:
    connections: list[Http2Connection] = []
    streams: list[Stream] = []
    while len(streams) < _IDLE_STREAMS and len(connections) < _IDLE_CONNECTIONS:
        connection = await Http2Connection.open(address)
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


async def _resets(address: str, counts: Counts) -> None:
    connection = await Http2Connection.open(address)
    data = framed(pb.CompleteRequest(session_id="reset", sequence=1, prefix="x = ").SerializeToString())
    for number in itertools.count(1):
        stream = connection.call("Complete")
        await stream.send(data, ends=True)
        stream.reset()
        counts["reset"] += 1
        if not connection.is_open:
            return
        if number % _RESET_AT_ONCE == 0:
            await asyncio.sleep(0 if number % _RESETS else _RESETS_EVERY_S)


async def _flood(address: str, counts: Counts) -> None:
    async with await Http2Connection.open(address) as connection:
        stream = connection.call("Session")
        for sequence in itertools.count(1):
            request = pb.CompleteRequest(session_id="flood", sequence=sequence, prefix=_FLOOD_PREFIX)
            await stream.send(framed(pb.SessionRequest(complete=request).SerializeToString()))
            counts["sent"] += 1
            if stream.status is not None:
                break
            if sequence % _FLOOD_PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        _count_end(counts, stream)


async def _big_prompts(address: str, counts: Counts, users: int = 1) -> None:
    connection = await Http2Connection.open(address)

    async def ask(sequence: int) -> None:
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
        await _send_one(connection, framed(request.SerializeToString()), counts, (("x-user-id", user),))

    async with asyncio.TaskGroup() as group:
        for sequence in itertools.count(1):
            group.create_task(ask(sequence))
            await asyncio.sleep(1 / _BIG_PER_S)
            if not connection.is_open:
                return


_LONG_CONTEXT = ("engine.max_model_len=4096", "prompt.max_prompt_tokens=3000")

ATTACKS: Mapping[str, Attack] = {
    "snippet_bomb": Attack("2 messages/s of empty snippets, 16 MiB that gzip to 16 KiB", _snippet_bomb),
    "refused_prefixes": Attack(
        "4 callers in a loop, each with a prefix of 15 MiB (or the server's limit)", _refused_prefixes
    ),
    "half_messages": Attack(
        "24 streams on one connection, each with a message of 16 MiB (or the server's limit) less a byte",
        _half_messages,
    ),
    "idle_sessions": Attack(
        "20,000 Session streams without a request, on one connection (or as many as the server allows on 16)",
        _idle_sessions,
    ),
    "resets": Attack("20,000 calls opened and reset as fast as the connection takes them, every 2 s", _resets),
    "flood": Attack("one Session stream with valid requests of 6 KB, as fast as the server reads", _flood),
    "big_prompts": Attack(
        "one user asks 20 times a second, EXPLICIT, each time with a new document that fills the prompt",
        _big_prompts,
        _LONG_CONTEXT,
    ),
    # A limit for each user lets all of them pass.
    "many_names": Attack(
        "the same under 200 user names, from one address", partial(_big_prompts, users=200), _LONG_CONTEXT
    ),
}


@click.command()
@click.argument("name", type=click.Choice(list(ATTACKS)))
@click.argument("address")
def main(name: str, address: str) -> None:
    """Run the attack NAME on the server at ADDRESS until a line comes on standard input."""
    os.nice(_NICENESS)
    click.echo(json.dumps(asyncio.run(_attack(ATTACKS[name], address))))


async def _attack(attack: Attack, address: str) -> Counts:
    counts: Counts = Counter()
    running = asyncio.create_task(keep_on(attack, address, counts))
    await asyncio.to_thread(sys.stdin.readline)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return counts


if __name__ == "__main__":
    main()
