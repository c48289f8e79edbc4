"""The attacks by name, and the process that runs one: `python -m loadtest.bench.attacks.attacker`.

It attacks from addresses of its own (127.0.0.2, 127.0.1.1 and others), so that limits for each peer can tell it from
the honest users. It prints a line when it begins. A line on standard input ends it; it then prints its counts.
"""

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.http2 import Http2Connection, Metadata, Stream, framed, held_open

MIB = 1024 * 1024
SMALL_REQUEST = framed(
    pb.CompleteRequest(session_id="attack", sequence=1, prefix="x = ", max_tokens=8).SerializeToString()
)
"""The message of a valid request."""
BEGINNINGS = (
    b"",
    b"PRI * HTT",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)
"""What a slow client sends to a port of HTTP/2 or TLS, and no more."""
HTTP_BEGINNINGS = (b"", b"POST /infill HTTP/1.1\r\nhost: loc", b"POST /infill HTTP/1.1\r\ncontent-length: 99\r\n\r\n{")
_ADDRESSES = 64
"""Source addresses of an attack from many."""
_LINES = "".join(f"def area_{number}(width, height):\n    return width * height\n\n\n" for number in range(40))
_NICENESS = 10
"""Niceness of the process: a real attacker has another machine and takes no CPU from the server."""
_RESOURCE_EXHAUSTED = 8
_EMPTY_SNIPPET = b"\x3a\x00"
_CAPACITY_PER_S = 60.0
"""Requests like those of `typed` that the scripted engine of the benchmark ends in a second, about."""


@dataclass(slots=True)
class Attacker:
    """A server to attack, and what was done to it."""

    address: str
    """HOST:PORT of gRPC."""
    http_address: str
    """HOST:PORT of plain HTTP."""
    counts: Counter[str]
    """The actions and their results, for the report."""

    async def connect(self, source: int | None = None) -> Http2Connection:
        """Connect from one of _ADDRESSES addresses of this machine."""
        own = () if source is None else (f"127.0.1.{1 + source % _ADDRESSES}",)
        return await Http2Connection.open(self.address, *own)

    def count_end(self, stream: Stream) -> None:
        """Count the status of a call."""
        self.counts[f"status_{'none' if stream.status in {None, -1} else stream.status}"] += 1

    async def ask(self, connection: Http2Connection, data: bytes, metadata: Metadata = ()) -> None:
        """Send a message as a whole call, wait for its end and count it."""
        self.count_end(await connection.ask(data, metadata))


async def _at_rate(
    per_s: float, ask: Callable[[int], Coroutine[Any, Any, None]], *connections: Http2Connection
) -> None:
    """Begin `ask(1)`, `ask(2)` and so on, `per_s` times a second, until a connection is closed."""
    async with asyncio.TaskGroup() as group:
        for number in itertools.count(1):
            group.create_task(ask(number))
            await asyncio.sleep(1 / per_s)
            if not all(each.is_open for each in connections):
                return


async def _all(works: list[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


def typed(name: str, sequence: int, **fields: Any) -> pb.CompleteRequest:  # noqa: ANN401 - any of the message
    """Return a request as the editor of a user sends it while the user types."""
    return pb.CompleteRequest(
        session_id=name, sequence=sequence, document_uri=f"file:///{name}.py", language_id="python",
        prefix=f"{_LINES}total_{sequence} = ", suffix="\n\nprint(area_1(2, 3))\n", mode=pb.MODE_SINGLE_LINE,
        max_tokens=16, **fields,
    )  # fmt: skip


def _typed(user: str, sequence: int) -> bytes:
    return framed(typed(user, sequence, without_completion_cache=True).SerializeToString())


async def _snippet_bomb(attacker: Attacker) -> None:
    """Find the largest message of empty snippets that the server does not refuse by its size, and repeat it."""
    head, metadata, size = pb.CompleteRequest(prefix="x = ").SerializeToString(), (("grpc-encoding", "gzip"),), 16 * MIB
    async with await attacker.connect() as connection:
        while True:
            size //= 2
            message = gzip.compress(head + _EMPTY_SNIPPET * (size // len(_EMPTY_SNIPPET)))
            stream = await connection.ask(framed(message, is_compressed=True), metadata)
            if stream.status != _RESOURCE_EXHAUSTED or "larger than max" not in stream.details:
                break
        attacker.counts["message_kib"] = size // 1024
        while connection.is_open:
            await asyncio.gather(
                attacker.ask(connection, framed(message, is_compressed=True), metadata), asyncio.sleep(0.5)
            )


async def _held_messages(attacker: Attacker) -> None:
    """Hold messages that are not whole; one that is ended is sent again."""
    data = framed(pb.CompleteRequest(session_id="held", sequence=1, prefix="x" * MIB).SerializeToString())[:-1]

    async def hold(connection: Http2Connection) -> None:
        while connection.is_open:
            stream = connection.call("Complete")
            attacker.counts["held" if await stream.send(data) else "cut"] += 1
            await stream.ended(3600.0)
            attacker.count_end(stream)

    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(await attacker.connect(number)) for number in range(_ADDRESSES)]
        await _all([hold(connection) for connection in opened for _ in range(16)])


async def _idle_sessions(attacker: Attacker, wanted: int = 20_000, connections: int = 16) -> None:
    streams: list[Stream] = []
    async with AsyncExitStack() as stack:
        opened: list[Http2Connection] = []
        while len(streams) < wanted and len(opened) < connections:
            connection = await stack.enter_async_context(await attacker.connect())
            opened.append(connection)
            attacker.counts["connections"] += 1
            while len(streams) < wanted and connection.is_open and len(connection.streams) < connection.max_streams:
                streams.append(connection.call("Session"))
                if len(streams) % 500 == 0:
                    await connection.drain()
                    await asyncio.sleep(0.05)
            await connection.drain()
        while any(connection.is_open for connection in opened):
            attacker.counts["held"] = sum(stream.status is None for stream in streams)
            await asyncio.sleep(0.05)


async def _resets(attacker: Attacker) -> None:
    async with await attacker.connect() as connection:
        for number in itertools.count(1):
            stream = connection.call("Complete")
            await stream.send(SMALL_REQUEST, ends=True)
            stream.reset()
            attacker.counts["reset"] += 1
            if not connection.is_open:
                return
            if number % 200 == 0:
                await asyncio.sleep(0 if number % 20_000 else 2.0)


async def _big_prompts(attacker: Attacker, users: int) -> None:
    """Ask for completions in new documents that fill the prompt, as so many users in turn."""
    async with await attacker.connect() as connection:

        async def call(sequence: int) -> None:
            user = f"user-{sequence % users}"
            request = pb.CompleteRequest(
                session_id=user,
                sequence=sequence,
                document_uri=f"file:///{sequence}.py",
                prefix="".join(f"value_{sequence}_{line} = {line}\n" for line in range(1500)),
                trigger=pb.TRIGGER_EXPLICIT,
                mode=pb.MODE_MULTI_LINE,
            )
            await attacker.ask(connection, framed(request.SerializeToString()), (("x-user-id", user),))

        await _at_rate(20, call, connection)


async def _slow_connections(attacker: Attacker, num: int = 1_000) -> None:
    """Hold connections of each listener; one that the server closes is opened again."""

    async def reopen(address: str, beginning: bytes) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with held_open(address, beginning) as reader:
                    attacker.counts["opened"] += 1
                    while await reader.read(1024):
                        pass
            attacker.counts["closed_by_the_server"] += 1
            await asyncio.sleep(0.1)

    kinds = ((attacker.address, BEGINNINGS), (attacker.http_address, HTTP_BEGINNINGS))
    await _all([reopen(to, kinds_of[i % len(kinds_of)]) for i in range(num) for to, kinds_of in kinds])


async def _cancels(attacker: Attacker) -> None:
    """Ask as 100 users of one connection, each of which cancels every second request at its first text."""
    numbers = itertools.count(1)

    async def ask_on(connection: Http2Connection, user: str) -> None:
        metadata = (("x-user-id", user),)
        while connection.is_open:
            number = next(numbers)
            if number % 2 == 0:
                await attacker.ask(connection, _typed(user, number), metadata)
                continue
            stream = connection.call("Complete", metadata)
            await stream.send(_typed(user, number), ends=True)
            await stream.answered()
            stream.reset()
            attacker.counts["cancelled"] += 1

    async with await attacker.connect() as connection:
        await _all([ask_on(connection, f"user-{number}") for number in range(100)])


async def _overload(attacker: Attacker, times: float) -> None:
    """Ask `times` the engine's capacity, each request as another of 4 users at each of 64 addresses."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(await attacker.connect(number)) for number in range(_ADDRESSES)]

        async def call(number: int) -> None:
            place = number % (4 * _ADDRESSES)
            user = f"user-{place}"
            await attacker.ask(opened[place % _ADDRESSES], _typed(user, number), (("x-user-id", user),))

        await _at_rate(times * _CAPACITY_PER_S, call, *opened)


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack on a server."""

    about: str
    """One-line description."""
    run: Callable[[Attacker], Awaitable[None]]
    """Attacks the server until it is cancelled, or ends."""
    overrides: tuple[str, ...] = ()
    """Settings of the server that the attack needs."""
    seconds: float = 10.0
    """Its length, if the run does not set another."""


_LONG_CONTEXT = ("engine.max_model_len=4096", "prompt.max_prompt_tokens=3000")
_UNLIMITED = ("admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.users_per_peer=0")
ATTACKS: Mapping[str, Attack] = {
    "snippet_bomb": Attack("2 messages/s of empty snippets, as large as the server takes, gzipped", _snippet_bomb),
    "held_messages": Attack("16 messages of a MiB less a byte from each of 64 addresses", _held_messages),
    "idle_sessions": Attack(
        "20,000 Session streams without a request, as many as the server allows on 16 connections", _idle_sessions
    ),
    "resets": Attack("100,000 calls opened and reset, 20,000 of them at once every 2 s", _resets, seconds=20.0),
    "big_prompts": Attack(
        "one user asks 20 times a second, EXPLICIT, each time with a new document that fills the prompt",
        partial(_big_prompts, users=1),
        _LONG_CONTEXT,
    ),
    # A limit for each user lets all of them pass.
    "many_names": Attack(
        "the same under 200 user names, from one address", partial(_big_prompts, users=200), _LONG_CONTEXT
    ),
    "slow_connections": Attack(
        "1,000 connections to gRPC and 1,000 to HTTP with the beginning of a request or a TLS handshake",
        _slow_connections,
    ),
    "cancels": Attack("requests, every second one cancelled at its first text", _cancels, _UNLIMITED),
    "overload": Attack(
        "three times the engine's capacity for five minutes, from 256 users at 64 addresses",
        partial(_overload, times=3.0),
        seconds=300.0,
    ),
    "spike": Attack("ten times the engine's capacity for 10 s", partial(_overload, times=10.0)),
}


@click.command()
@click.argument("name", type=click.Choice(list(ATTACKS)))
@click.argument("address")
@click.argument("http_address")
def main(name: str, address: str, http_address: str) -> None:
    """Run the attack NAME on the server at ADDRESS until a line comes on standard input."""
    os.nice(_NICENESS)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attacker = Attacker(address, http_address, Counter())
    click.echo(json.dumps({"event": "ready"}))
    asyncio.run(_attack(ATTACKS[name], attacker))
    click.echo(json.dumps(attacker.counts))


async def _attack(attack: Attack, attacker: Attacker) -> None:
    """Run an attack until a line comes, and run it again when the server closes the connection."""

    async def keep_on() -> None:
        while True:
            try:
                await attack.run(attacker)
            except* OSError:
                attacker.counts["connections_lost"] += 1
            await asyncio.sleep(0.01)

    running = asyncio.create_task(keep_on())
    await asyncio.to_thread(sys.stdin.readline)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    main()
