"""A gRPC client on the package h2, without a gRPC library: it sends any bytes in any order."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

SERVICE = "/completion.v1.CompletionService"
ATTACKER = "127.0.0.2"
Metadata = Sequence[tuple[str, str]]

_ANSWER_S = 20.0
_OUR_WINDOW = 1 << 30
_RECEIVED_BYTES = 1 << 16
_CONFIG = H2Configuration(header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False)


async def connect(address: str, source: str = ATTACKER) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to HOST:PORT from a source address. Raises OSError if no server listens."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(source, 0))


def headers_of(method: str) -> list[tuple[str, str]]:
    """Return the headers of a call: of a method of CompletionService, or of another service by the whole path."""
    path = method if method.startswith("/") else f"{SERVICE}/{method}"
    pseudo = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "server"))
    return [*pseudo, ("content-type", "application/grpc"), ("te", "trailers")]


class _H2(H2Connection):
    """Opens more streams than the server allows."""

    open_outbound_streams = 0


class Stream:
    """One call."""

    def __init__(self, connection: "Http2Connection", number: int) -> None:
        """Belong to a connection."""
        self.number = number
        self.num_sent_bytes = 0
        self.status: int | None = None
        """The gRPC status, -1 where the stream was reset without one; None while the call is open."""
        self.details = ""
        self.is_answered = False
        """Whether a first part of the answer has come."""
        self._connection = connection

    async def send(self, data: bytes, *, ends: bool = False) -> bool:
        """Send bytes as the server's windows allow; return whether all went out before the call ended."""
        h2, rest = self._connection.h2, memoryview(data)
        while rest and self.status is None:
            size = min(len(rest), h2.max_outbound_frame_size, h2.local_flow_control_window(self.number))
            if size <= 0:
                await self._connection.wait()
                continue
            h2.send_data(self.number, bytes(rest[:size]))
            rest = rest[size:]
            self.num_sent_bytes += size
            self._connection.write()
            await self._connection.drain()
        if ends and self.status is None:
            h2.end_stream(self.number)
            self._connection.write()
        return not rest

    async def answered(self) -> None:
        """Wait for the first part of the answer, or the end of the call, up to 20 s."""
        await self._waited(lambda: self.is_answered or self.status is not None, _ANSWER_S)

    async def ended(self, timeout_s: float) -> bool:
        """Wait for the end of the call; return whether it came in time."""
        await self._waited(lambda: self.status is not None, timeout_s)
        return self.status is not None

    async def _waited(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_done():
                    await self._connection.wait()

    def reset(self) -> None:
        """Cancel the call, and take nothing more in for it."""
        if self._connection.streams.pop(self.number, None) is not None:
            self._connection.h2.reset_stream(self.number, ErrorCodes.CANCEL)
            self._connection.write()


class Http2Connection:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open` instead."""
        self.is_open = True
        self.h2 = _H2(_CONFIG)
        """The state of the protocol; what it has to send goes out with `write`."""
        self.streams: dict[int, Stream] = {}
        """Calls that are open."""
        self._reader = reader
        self._writer = writer
        self._change = asyncio.Event()
        self._settled = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, address: str, source: str = ATTACKER) -> Self:
        """Connect from a source address and wait for the server's settings.

        Raises:
            OSError: no server listens, or the server hangs up.

        """
        connection = cls(*await connect(address, source))
        connection.h2.initiate_connection()
        connection.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: _OUR_WINDOW})
        connection.h2.increment_flow_control_window(_OUR_WINDOW)
        connection.write()
        await connection._settled.wait()
        if not connection.is_open:
            await connection.aclose()
            msg = "the server hung up"
            raise ConnectionError(msg)
        return connection

    @property
    def max_streams(self) -> int:
        """Calls that the server allows to be open."""
        return int(self.h2.remote_settings.max_concurrent_streams)

    def call(self, method: str, metadata: Metadata = ()) -> Stream:
        """Open a call: of a method of CompletionService, or of another service by the whole path."""
        stream = Stream(self, self.h2.get_next_available_stream_id())
        self.streams[stream.number] = stream
        self.h2.send_headers(stream.number, [*headers_of(method), *metadata])
        self.write()
        return stream

    async def ask(self, data: bytes, metadata: Metadata = (), method: str = "Complete") -> Stream:
        """Send a whole call and wait for its end, up to 20 s."""
        stream = self.call(method, metadata)
        await stream.send(data, ends=True)
        await stream.ended(_ANSWER_S)
        return stream

    def write(self) -> None:
        """Give the socket what is to be sent."""
        self._writer.write(self.h2.data_to_send())

    def write_raw(self, data: bytes) -> None:
        """Give the socket bytes of which the state of the protocol knows nothing."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the socket takes more."""
        if self.is_open:
            await self._writer.drain()

    async def wait(self) -> None:
        """Wait until something has come in."""
        self._change.clear()
        if self.is_open:
            await self._change.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Hang up."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        with contextlib.suppress(OSError, ProtocolError):
            while self.is_open and (data := await self._reader.read(_RECEIVED_BYTES)):
                for event in self.h2.receive_data(data):
                    self._take(event)
                self.write()
                self._change.set()
        self.is_open = False
        for stream in self.streams.values():
            stream.status = -1
        self.streams.clear()
        self._settled.set()
        self._change.set()

    def _take(self, event: events.Event) -> None:
        match event:
            case events.RemoteSettingsChanged():
                self._settled.set()
            case events.ConnectionTerminated():
                self.is_open = False
            case events.ResponseReceived(stream_id=int(number)) | events.TrailersReceived(stream_id=int(number)):
                headers = {str(name): str(value) for name, value in event.headers}
                if "grpc-status" in headers and number in self.streams:
                    stream = self.streams.pop(number)
                    stream.details = headers.get("grpc-message", "")
                    stream.status = int(headers["grpc-status"])
            case events.DataReceived(stream_id=int(number)) if number in self.streams:
                self.streams[number].is_answered = True
            case events.StreamReset(stream_id=int(number)) if number in self.streams:
                self.streams.pop(number).status = -1


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    """Return a message as gRPC frames it."""
    return struct.pack(">BI", is_compressed, len(message)) + message


@asynccontextmanager
async def held_open(address: str, beginning: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Hold a connection that has sent the beginning of something; yield what reads from it.

    Raises:
        OSError: no server listens, or the server hangs up.

    """
    reader, writer = await connect(address)
    try:
        writer.write(beginning)
        yield reader
    finally:
        writer.close()
        await asyncio.sleep(0)
