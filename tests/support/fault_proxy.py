"""A TCP proxy between clients and Redis, with faults that a test changes while connections are open.

A TLS connection passes, too, but its pub/sub messages can't be told from other bytes.
"""

import asyncio
import random
import re
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.support.redis_servers import free_port

_MAX_ATTEMPTS = 20
_BACKLOG = 100
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # linger for 0 s: close sends RST
_PUSHED = re.compile(rb"[*>][34]\r\n\$[78]\r\n[sp]?message\r\n")


@dataclass(frozen=True)
class Delay:
    """How long a piece of data waits. Pieces never overtake each other."""

    fixed_s: float = 0.0
    random_s: float = 0.0
    """Up to this much more, drawn for each piece."""


@dataclass
class Faults:
    """The faults of a proxy. Each can be set at any time, and holds for open connections, too, from then on."""

    request_delay: Delay = Delay()
    """From clients to Redis."""
    reply_delay: Delay = Delay()
    """From Redis to clients."""
    black_hole: bool = False
    """Connections are accepted, what they send is swallowed, and nothing is answered. A connection that lost bytes
    answers nothing afterwards, either, until its client closes it."""
    drop_pushes: float = 0.0
    """The probability that a pub/sub message is lost."""
    duplicate_pushes: float = 0.0
    """The probability that a pub/sub message that is not lost comes twice."""


class FaultProxy:
    """Relays connections to `upstream`, HOST:PORT. Use it as an asynchronous context manager."""

    def __init__(self, upstream: str, seed: int = 0) -> None:
        self.faults = Faults()
        self.num_made = 0
        """Connections that clients have made."""
        self.random = random.Random(seed)
        self.port = 0
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self.ends: set[_End] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Task[object]] = set()
        self._listener: socket.socket | None = None
        self._is_closing = False

    async def __aenter__(self) -> Self:
        for _ in range(_MAX_ATTEMPTS):
            self.port = free_port()
            with suppress(OSError):  # taken since
                await self.accept()
                return self
        raise AssertionError("no free port")

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        self._is_closing = True
        await asyncio.gather(*self._accepting)
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        self.reset_all()
        async with asyncio.timeout(10):
            while self.ends:
                await asyncio.sleep(0.001)

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def num_open(self) -> int:
        """How many connections of clients are open."""
        return sum(not end.is_upstream for end in self.ends)

    def reset_all(self) -> None:
        """Close every open connection with RST, on both sides."""
        for end in tuple(self.ends):
            end.reset()

    def refuse(self) -> None:
        """Refuse new connections from now on. Open ones stay."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Accept new connections again, on the same port."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listener, self._accept_one)

    async def heal(self) -> None:
        """End all faults."""
        self.faults = Faults()
        await self.accept()

    def connect(self, end: "_End") -> None:
        """Connect a client's end to the upstream."""
        self.num_made += 1
        if self._is_closing:
            end.reset()
        elif not self.faults.black_hole:
            task = asyncio.create_task(self._connect(end))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def num_copies(self, value: bytes) -> int:
        """Return how often a value from Redis is passed on: once, unless it is a pub/sub message."""
        if not _PUSHED.match(value):
            return 1
        if self.random.random() < self.faults.drop_pushes:
            return 0
        return 2 if self.random.random() < self.faults.duplicate_pushes else 1

    def _accept_one(self) -> None:
        """Accept without an asyncio.Server, which leaves a connection half made if it is closed just then."""
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client is gone
            return
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(loop.connect_accepted_socket(lambda: _End(self), connection))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _connect(self, client: "_End") -> None:
        try:
            connecting = asyncio.get_running_loop().create_connection(lambda: _End(self, client), *self._upstream)
            client.join((await connecting)[1])
        except OSError:
            client.reset()


class _End(asyncio.Protocol):
    """One end of a relayed connection: the client's, or the one to the upstream. It writes what its peer receives."""

    transport: asyncio.Transport

    def __init__(self, proxy: FaultProxy, client: "_End | None" = None) -> None:
        self.is_upstream = client is not None
        self._proxy = proxy
        self._peer = client
        self._is_lost = False
        self._is_closed = False
        self._replies = PushSplitter()
        self._waiting: deque[bytes] = deque()
        """Received, and not yet due at the peer; b"" closes it."""
        self._due = 0.0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self.is_upstream:
            self._is_lost = self._proxy.faults.black_hole
            if not self._is_lost:
                transport.pause_reading()  # until the upstream is connected
        self._proxy.ends.add(self)
        if not self.is_upstream:
            self._proxy.connect(self)

    def join(self, upstream: "_End") -> None:
        """Relay from now on, both ways."""
        if self._is_closed:
            upstream.reset()
        else:
            self._peer = upstream
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._proxy.faults.black_hole:
            for end in (self, self._peer):  # all that comes from now on is swallowed
                if end is not None:
                    end._is_lost = True
                    end._waiting.clear()
        if self._is_lost:
            return
        if self.is_upstream:
            data = b"".join(value * self._proxy.num_copies(value) for value in self._replies.feed(data))
        if data:
            self._pass_on(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._proxy.ends.discard(self)
        if self._peer is None:
            return
        if exc is not None and not self._is_lost:
            self._peer.reset()
        elif not self.is_upstream:
            self._peer.transport.close()
        elif not (self._is_lost or self._proxy.faults.black_hole):
            self._pass_on(b"")

    def reset(self) -> None:
        """Close with RST. What waits is lost."""
        self._waiting.clear()
        if not self.transport.is_closing():
            connection: socket.socket = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def _pass_on(self, data: bytes) -> None:
        faults, now = self._proxy.faults, self._loop.time()
        delay = faults.reply_delay if self.is_upstream else faults.request_delay
        waits_s = delay.fixed_s + (self._proxy.random.uniform(0, delay.random_s) if delay.random_s else 0.0)
        self._due = max(self._due, now + waits_s)
        self._waiting.append(data)
        if self._due <= now and len(self._waiting) == 1:
            self._write_next()
        else:
            self._loop.call_at(self._due, self._write_next)

    def _write_next(self) -> None:
        if not self._waiting or self._peer is None:
            return
        data = self._waiting.popleft()
        if not data:
            self._peer.transport.close()
        elif not self._peer.transport.is_closing():
            self._peer.transport.write(data)


class PushSplitter:
    """Splits what Redis sends into pub/sub messages, each whole, and the bytes between them."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take received bytes and return what can be passed on now."""
        self._buffer += data
        while self._buffer:
            found = _PUSHED.search(self._buffer)
            if found is None or found.start():
                end = found.start() if found else len(self._buffer)
            elif (end := _end_of_push(self._buffer)) > len(self._buffer):
                return
            yield self._buffer[:end]
            self._buffer = self._buffer[end:]


def _end_of_push(data: bytes) -> int:
    """Return where the message at the start of `data` ends, beyond the end of `data` if it is not whole."""
    at = data.index(b"\r\n") + 2
    for _ in range(int(data[1:2])):
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return len(data) + 1
        at = line_end + 2 + int(data[at + 1 : line_end]) + 2
    return at
