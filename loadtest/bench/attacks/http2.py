"""A gRPC client without a gRPC library: writes any bytes in any order, which a library would refuse.

Implements the little of HTTP/2 (RFC 9113) that attacks need: no padding, no priorities, no HPACK compression.
"""

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Self

SERVICE = "/completion.v1.CompletionService"
ATTACKER = "127.0.0.2"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEADER_TABLE_SIZE, _MAX_STREAMS, _INITIAL_WINDOW = 1, 3, 4
_OUR_WINDOW = 1 << 30
_MAX_FRAME = 16_384
_CANCEL = struct.pack(">I", 8)
_STATUS, _MESSAGE = b"\x0bgrpc-status", b"\x0cgrpc-message"


class Stream:
    """One call."""

    def __init__(self, connection: "Http2Connection", number: int, window: int) -> None:
        """Belong to a connection; `window` is how many bytes the server takes at first."""
        self.number = number
        self.window = window
        self.num_sent_bytes = 0
        self.num_received_bytes = 0
        self.status: int | None = None
        """The gRPC status, -1 where the stream was reset without one; None while the call is open."""
        self.details = ""
        self._connection = connection

    async def send(self, data: bytes, *, ends: bool = False) -> bool:
        """Send bytes as the server's windows allow; return whether all went out before the call ended."""
        connection, rest = self._connection, memoryview(data)
        while rest and self.status is None:
            size = min(len(rest), _MAX_FRAME, self.window, connection.window)
            if size <= 0:
                await connection.wait()
                continue
            connection.write(_DATA, 0, self.number, rest[:size])
            rest = rest[size:]
            self.window -= size
            self.num_sent_bytes += size
            connection.window -= size
            await connection.drain()
        if ends and self.status is None:
            connection.write(_DATA, _END_STREAM, self.number)
        return not rest

    async def ended(self, timeout_s: float) -> bool:
        """Wait for the end of the call; return whether it came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.status is None:
                    await self._connection.wait()
        except TimeoutError:
            return False
        return True

    def reset(self) -> None:
        """Cancel the call."""
        self._connection.write(_RST, 0, self.number, _CANCEL)
        self._connection.forget(self)


class Http2Connection:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open` instead."""
        self._reader = reader
        self._writer = writer
        self.window = 65_535
        self.max_streams = (1 << 31) - 1
        self.is_open = True
        self._initial_window = 65_535
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._change = asyncio.Event()
        self._settled = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, address: str, source: str = ATTACKER) -> Self:
        """Connect from a source address and wait for the server's settings.

        Raises:
            OSError: no server listens, or the server hangs up.

        """
        host, _, port = address.rpartition(":")
        connection = cls(*await asyncio.open_connection(host, int(port), local_addr=(source, 0)))
        connection._writer.write(_PREFACE)
        settings = ((_HEADER_TABLE_SIZE, 0), (_INITIAL_WINDOW, _OUR_WINDOW))
        connection.write(_SETTINGS, 0, 0, b"".join(struct.pack(">HI", *each) for each in settings))
        connection.write(_WINDOW, 0, 0, struct.pack(">I", _OUR_WINDOW))
        await connection._settled.wait()
        if not connection.is_open:
            await connection.close()
            msg = "the server hung up"
            raise ConnectionError(msg)
        return connection

    @property
    def num_streams(self) -> int:
        """Calls that are open."""
        return len(self._streams)

    def call(self, method: str, metadata: Sequence[tuple[str, str]] = ()) -> Stream:
        """Open a call: of a method of CompletionService, or of another service by the whole path."""
        path = method if method.startswith("/") else f"{SERVICE}/{method}"
        pseudo = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "server"))
        headers = (*pseudo, ("content-type", "application/grpc"), ("te", "trailers"), *metadata)
        stream = self._streams[self._next] = Stream(self, self._next, self._initial_window)
        self._next += 2
        self.write(_HEADERS, _END_HEADERS, stream.number, b"".join(_literal(*each) for each in headers))
        return stream

    def write(self, kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> None:
        """Write a frame, regardless of the flow-control windows."""
        self._writer.write(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream))
        self._writer.write(payload)

    async def drain(self) -> None:
        """Wait until the socket takes more."""
        if self.is_open:
            await self._writer.drain()

    async def wait(self) -> None:
        """Wait until something has come in."""
        self._change.clear()
        if self.is_open:
            await self._change.wait()

    def forget(self, stream: Stream) -> None:
        """Take nothing more in for a call."""
        self._streams.pop(stream.number, None)

    async def close(self) -> None:
        """Hang up."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up."""
        await self.close()

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                kind, flags, number = struct.unpack(">BBI", head[3:])
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(kind, flags, number, payload)
                self._change.set()
        except (asyncio.IncompleteReadError, OSError):
            self._hang_up()

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        stream = self._streams.get(number)
        if kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _PING and not flags & _ACK:
            self.write(_PING, _ACK, 0, payload)
        elif kind == _WINDOW and number == 0:
            self.window += int.from_bytes(payload, "big")
        elif kind == _WINDOW and stream is not None:
            stream.window += int.from_bytes(payload, "big")
        elif kind in {_DATA, _HEADERS, _RST} and stream is not None:
            self._take_answer(stream, kind, flags, payload)

    def _take_settings(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == _INITIAL_WINDOW:
                for stream in self._streams.values():
                    stream.window += value - self._initial_window
                self._initial_window = value
            elif key == _MAX_STREAMS:
                self.max_streams = value
        self.write(_SETTINGS, _ACK, 0)
        self._settled.set()

    def _take_answer(self, stream: Stream, kind: int, flags: int, payload: bytes) -> None:
        if kind == _DATA:
            stream.num_received_bytes += len(payload)
        elif kind == _HEADERS and flags & _END_STREAM:
            stream.status = int(_value(payload, _STATUS) or -1)
            stream.details = _value(payload, _MESSAGE)
        elif kind == _RST and stream.status is None:
            stream.status = -1
        if stream.status is not None:
            self.forget(stream)

    def _hang_up(self) -> None:
        self.is_open = False
        for stream in self._streams.values():
            stream.status = -1
        self._streams.clear()
        self._settled.set()
        self._change.set()


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    """Return a message as gRPC frames it."""
    return struct.pack(">BI", is_compressed, len(message)) + message


def _literal(name: str, value: str) -> bytes:
    """Return a header field for HPACK: literal, never indexed, no Huffman code; up to 126 bytes each."""
    return b"\x10" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _value(headers: bytes, name: bytes) -> str:
    """Return a header that the server sent as a literal; "" if there is none."""
    _, found, rest = headers.partition(name)
    return rest[1 : 1 + rest[0]].decode("ascii", "replace") if found and rest else ""
