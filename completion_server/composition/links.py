"""What the parent and a front end tell each other, and the connection between them. Part of the composition root.

The parent owns the engine and what there is one of: K, the admin listener, the metrics page. Front ends take requests.
"""

import asyncio
import contextlib
import multiprocessing
import pickle
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from completion_server.config import Config
from completion_server.engine.interface import EngineShare
from completion_server.serving.service import LoadSnapshot
from completion_server.state.local.group import LocalGroup
from completion_server.state.status import CacheStatus, ReplicationStatus

INTERFACE = 2
"""Version of this module's messages and of what is shared beside them. A front end of another one does not serve."""
PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a front end needs to know at its start."""

    config: Config
    group: LocalGroup


@dataclass(frozen=True, slots=True)
class EngineUp:
    """To a front end: the engine is ready."""

    share: EngineShare


@dataclass(frozen=True, slots=True)
class EngineDown:
    """To a front end: the engine has died, and another one will follow."""


@dataclass(frozen=True, slots=True)
class Drain:
    """To a front end: let accepted requests finish, then end."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """To a front end."""

    level: str


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """To a front end, which answers with `Metrics`."""


@dataclass(frozen=True, slots=True)
class Serving:
    """From a front end: it serves."""

    address: str
    http_address: str
    prompt_template: str
    version: str
    """Of its code."""


@dataclass(frozen=True, slots=True)
class Refused:
    """From a front end: it can't start, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """From a front end, twice a second."""

    load: LoadSnapshot
    ended: dict[str, int]
    replication: ReplicationStatus | None
    cache: CacheStatus | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """From a front end: its metrics, in Prometheus' text format."""

    text: str


_CLOSE_S = 2.0
_LENGTH = struct.Struct("<I")
ToFrontEnd = EngineUp | EngineDown | Drain | SetLogLevel | AskMetrics
FromFrontEnd = Serving | Refused | Report | Metrics
Received = TypeVar("Received")
Sent = TypeVar("Sent")


class Link(asyncio.Protocol, Generic[Received, Sent]):
    """One end of the connection between the parent and a front end."""

    def __init__(self, receive: Callable[[Received], None], closed: Callable[[], None]) -> None:
        """Pass messages to `receive`, and call `closed` once the other end is gone."""
        self._receive = receive
        self._closed = closed
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    async def open(self, connected: socket.socket) -> None:
        """Own a connected socket from now on."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=connected)

    def send(self, message: Sent) -> None:
        """Send a message without waiting; it is lost if the other end is gone."""
        if self._transport is not None:
            data = pickle.dumps(message)
            self._transport.write(_LENGTH.pack(len(data)) + data)

    async def aclose(self) -> None:
        """Close this end when what was sent is on its way, but don't wait long."""
        if self._transport is not None:
            self._closed = (ended := asyncio.Event()).set
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _CLOSE_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that are complete; asyncio calls this."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            message = pickle.loads(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            self._receive(message)

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell of the end; asyncio calls this."""
        self._transport = None
        self._closed()
