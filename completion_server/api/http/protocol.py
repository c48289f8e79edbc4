"""uvicorn's HTTP protocol with limits: open connections, a request's head, what is no body after it, stalled writes."""

import asyncio
import re
import ssl
from collections.abc import MutableSet
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from completion_server.api.http.requests import CERTIFICATE

_MAX_HEAD_BYTES = 16 * 1024
_MAX_HEADERS = 64
_MAX_FRAMING_BYTES = 64 * 1024
"""Of a chunked body: the sizes and extensions of its chunks, and its trailers."""
_FRAMING_PER_BYTE = 8
"""Framing that a byte of the body may have and that does not count: a chunk of one byte has 5 bytes of it."""
_OFFER, _PASSED_OVER = re.compile(rb"\r\nupgrade:", re.IGNORECASE), b"\r\nx-offer:"
"""Java's client offers HTTP/2 with its first request, and the parser takes what follows such a head for that protocol.
No JSON text can hold the line break."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one listener."""

    max_connections: int
    head_timeout_s: float
    """From a request's first byte, or from the opening of the connection, to the end of its head. A TLS handshake
    may take as long."""
    stall_timeout_s: float
    """How long the client may leave written bytes unread."""


class HeadTooLargeError(Exception):
    """A head has too many bytes or headers. The parser answers 400 and closes."""


class PipelinedError(Exception):
    """A request came before the answer to the last one was written. No client of editors sends so."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: ClassVar[ConnectionLimits]
    """Of its listener, which has a subclass of its own: uvicorn makes the instances."""
    takes_certificates: ClassVar[bool]
    """Whether a request brings the certificate that its client has shown."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        """Begin without a connection."""
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_in_head = True
        self._num_head_bytes = 0
        self._num_framing_bytes = 0
        self._keeps_alive = True
        self.waits_since = self.loop.time()
        """When the connection was opened, or its last request was received whole."""

    @property
    def is_waiting(self) -> bool:
        """Whether it has no request that was received whole and is not answered yet."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection. If there are too many, an older one makes room, or else it is closed."""
        if len(self.connections) >= self.limits.max_connections and not close_oldest(self.connections):
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object") if self.takes_certificates else None
        if tls is not None and (certificate := tls.getpeercert(binary_form=True)):
            self.app_state = {CERTIFICATE: ssl.DER_cert_to_PEM_cert(certificate).encode()}
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        if self._is_in_head:
            if self._head_timer is None:
                self._await_head()
            self._num_head_bytes += len(data)
            data = _OFFER.sub(_PASSED_OVER, data[:_MAX_HEAD_BYTES]) + data[_MAX_HEAD_BYTES:]
        else:
            self._num_framing_bytes += len(data)
        super().data_received(data)
        if not self._is_in_head and self._num_framing_bytes > _MAX_FRAMING_BYTES:
            self.transport.abort()
        if self._is_in_head and self._num_head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        super().on_message_begin()
        self._is_in_head = True
        if self._head_timer is None:  # it came with the end of the last request
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Trailers, which come here too, would stand for headers of the same names."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the head of a request, whose handler runs now."""
        self._is_in_head, self._num_head_bytes, self._num_framing_bytes = False, 0, 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if num_bytes > _MAX_HEAD_BYTES or len(self.headers) > _MAX_HEADERS:
            raise HeadTooLargeError
        last = self.cycle
        if last is not None and not last.response_complete:
            self.transport.abort()  # uvicorn would not notice that the client of the last request leaves
            raise PipelinedError
        super().on_headers_complete()
        if self.cycle is not last:  # an answer that begins before the body has ended closes the connection
            self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._num_framing_bytes = max(0, self._num_framing_bytes - (1 + _FRAMING_PER_BYTE) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; what comes next is the head of another."""
        super().on_message_complete()
        self._is_in_head, self.waits_since = True, self.loop.time()
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive

    def shutdown(self) -> None:
        """Close the connection, at once or after its answer."""
        super().shutdown()
        self._keeps_alive = False

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self.transport.abort)


def close_oldest(connections: MutableSet[Any]) -> bool:
    """Close the connection that has waited for a whole request for the longest time; return whether there is one.

    So whoever opens many connections and sends nothing, or little, keeps nobody out.
    """
    waiting = [each for each in connections if isinstance(each, LimitedProtocol) and each.is_waiting]
    if not waiting:
        return False
    oldest = min(waiting, key=lambda each: each.waits_since)
    connections.discard(oldest)
    oldest.transport.abort()
    return True
