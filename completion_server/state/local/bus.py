"""Carries messages between the processes of one server: a Unix datagram socket for each place, in a private folder.

A message is sent at once and without waiting. If the receiver's queue is full, which may hold no more than ten
datagrams, messages wait here, up to a bound, and are sent together. A message may be lost, so that each part that
sends one says how the loss is mended. Messages come in order, and none comes twice.

Who may open the folder may send: it belongs to the server's user alone (mode 0700).
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, takewhile
from typing import Protocol

logger = logging.getLogger(__name__)

_VERSION = 1
"""Of all messages. Processes of two versions hear nothing from each other, as if messages were lost."""
_HEAD = struct.Struct("<BB")
_MESSAGE = struct.Struct("<BH")
MAX_PAYLOAD = 4096
"""Bytes of one message. A longer one is not sent."""
_MAX_DATAGRAM = 8192
"""What a place does not read stays in the sender's buffer, which all places share: ten of these leave room there."""
_MAX_WAITING = 262_144
"""Bytes that wait for one place. Further messages to it are lost."""
_FIRST_RETRY_S, _LAST_RETRY_S = 0.001, 0.064
_MAX_RECEIVED = 32
"""Datagrams that are read before other work of the event loop."""


class Kind(IntEnum):
    """What a message is about."""

    LANE = 1
    """A request was accepted: lanes.py."""
    RING = 2
    """There may be a slot for the receiver, or a request that goes before its own."""
    MEET = 3
    """A heartbeat: board.py."""
    REPORT = 4
    """Reports of shared limits: board.py."""
    ANSWER = 5
    """The answer to a heartbeat or to reports."""
    TOTALS = 6
    """Counts of the day: totals.py."""


Handler = Callable[[int, bytes], None]
"""Takes the sender's place and the payload."""


class Bus(Protocol):
    """Sends messages to places, and passes on those that come."""

    @property
    def place(self) -> int:
        """The own place."""
        ...

    def send(self, place: int, kind: Kind, payload: bytes = b"", /) -> bool:
        """Send a message without waiting. Return whether it is on its way."""
        ...

    def on(self, kind: Kind, handler: Handler, /) -> None:
        """Have a handler take the messages of a kind. It must not wait."""
        ...


@dataclass(slots=True)
class BusStats:
    """Counters of one place."""

    num_sent: int = 0
    num_lost: int = 0
    """Messages to a place that does not read, or where nobody is."""
    num_received: int = 0
    num_refused: int = 0
    """Datagrams and messages that are not understood."""


@dataclass(slots=True)
class _Waiting:
    """Messages for a place whose queue is full."""

    messages: deque[bytes] = field(default_factory=deque)
    num_bytes: int = 0
    retry_s: float = _FIRST_RETRY_S

    def keep(self, message: bytes) -> bool:
        """Keep one more message; return False if there are too many."""
        if self.num_bytes + len(message) > _MAX_WAITING:
            return False
        self.messages.append(message)
        self.num_bytes += len(message)
        return True

    def first(self) -> list[bytes]:
        """Return the first messages, as many as fit in a datagram."""
        sizes = accumulate(map(len, self.messages), initial=_HEAD.size)
        next(sizes)
        return [message for message, _size in zip(self.messages, takewhile(_MAX_DATAGRAM.__ge__, sizes), strict=False)]

    def drop(self, messages: list[bytes]) -> None:
        """Forget the first messages."""
        for message in messages:
            self.messages.popleft()
            self.num_bytes -= len(message)


class LocalBus:
    """One place of the bus. Implements `Bus`."""

    def __init__(self, folder: str, place: int) -> None:
        """Take a place, from 0 to 255. Messages come and go while `run` runs."""
        self._folder = folder
        self._place = place
        self._handlers: dict[int, Handler] = {}
        self._socket: socket.socket | None = None
        self._waiting: dict[int, _Waiting] = {}
        self.is_open = asyncio.Event()
        """Set while messages come and go."""
        self.stats = BusStats()

    @property
    def place(self) -> int:
        """The own place."""
        return self._place

    def on(self, kind: Kind, handler: Handler) -> None:
        """Have a handler take the messages of a kind. It must not wait."""
        self._handlers[kind] = handler

    def ring(self, place: int) -> None:
        """Have another place look at its queue of requests."""
        self.send(place, Kind.RING)

    def on_ring(self, callback: Callable[[], None]) -> None:
        """Call a function when another place rings."""
        self.on(Kind.RING, lambda _sender, _payload: callback())

    def send(self, place: int, kind: Kind, payload: bytes = b"") -> bool:
        """Send a message without waiting. Return whether it is on its way."""
        if len(payload) > MAX_PAYLOAD:
            self.stats.num_lost += 1
            return False
        message = _MESSAGE.pack(kind, len(payload)) + payload
        waiting = self._waiting.get(place)
        if waiting is None:
            try:
                return self._send_nowait(place, [message])
            except BlockingIOError:
                waiting = self._waiting[place] = _Waiting()
                self._retry_later(place, waiting)
        is_kept = waiting.keep(message)
        self.stats.num_lost += not is_kept
        return is_kept

    async def run(self) -> None:
        """Open the place, and close it when cancelled. A socket that a dead process left there is replaced."""
        loop, path = asyncio.get_running_loop(), self._path(self._place)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
            opened.setblocking(False)
            opened.bind(path)
            self._socket = opened
            loop.add_reader(opened.fileno(), self._receive, opened)
            self.is_open.set()
            try:
                await loop.create_future()
            finally:
                self.is_open.clear()
                loop.remove_reader(opened.fileno())
                self._socket = None
                self._waiting.clear()

    def _path(self, place: int) -> str:
        return f"{self._folder}/{place}"

    def _send_nowait(self, place: int, messages: list[bytes]) -> bool:
        """Send a datagram; return False if nobody is there. Raises BlockingIOError if the receiver's queue is full."""
        is_there = self._socket is not None
        try:
            if self._socket is not None:
                self._socket.sendto(_HEAD.pack(_VERSION, self._place) + b"".join(messages), self._path(place))
        except BlockingIOError:
            raise
        except OSError:  # no such socket, or its process is gone
            is_there = False
        if is_there:
            self.stats.num_sent += len(messages)
        else:
            self.stats.num_lost += len(messages)
        return is_there

    def _retry_later(self, place: int, waiting: _Waiting) -> None:
        asyncio.get_running_loop().call_later(waiting.retry_s, self._retry, place, waiting)
        waiting.retry_s = min(2 * waiting.retry_s, _LAST_RETRY_S)

    def _retry(self, place: int, waiting: _Waiting) -> None:
        """Send what waits for a place, in few datagrams."""
        try:
            while messages := waiting.first():
                self._send_nowait(place, messages)
                waiting.drop(messages)
        except BlockingIOError:
            self._retry_later(place, waiting)
        else:
            self._waiting.pop(place, None)

    def _receive(self, opened: socket.socket) -> None:
        for _ in range(_MAX_RECEIVED):
            try:
                data = opened.recv(_MAX_DATAGRAM)
            except OSError:  # nothing more
                return
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Pass on the messages of a datagram."""
        try:
            version, sender = _HEAD.unpack_from(data)
            at = _HEAD.size if version == _VERSION else len(data) + 1
            while at < len(data):
                kind, size = _MESSAGE.unpack_from(data, at)
                at += _MESSAGE.size + size
                self._pass_on(sender, kind, data[at - size : at])
        except struct.error:
            at = len(data) + 1
        if at != len(data):
            self.stats.num_refused += 1

    def _pass_on(self, sender: int, kind: int, payload: bytes) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            return
        self.stats.num_received += 1
        try:
            handler(sender, payload)
        except (struct.error, ValueError) as error:
            self.stats.num_refused += 1
            logger.warning("a message of kind %d from place %d is not understood: %s", kind, sender, error)
