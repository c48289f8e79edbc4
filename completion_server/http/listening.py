"""uvicorn's server without its signal handlers, and one for TLS, whose handshakes count as connections and have an end.

asyncio's own servers hand a connection over only after its handshake, so a client that never begins one would pass by
the limit of connections.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn

from completion_server.core.certificates import CertificateFiles
from completion_server.http.protocol import LimitedProtocol, close_oldest

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class PlainServer(uvicorn.Server):
    """A server that leaves signals to the process that it is in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change nothing."""
        yield


class TlsServer(PlainServer):
    """A server that accepts its connections itself. If as many are open as may be, an older one makes room."""

    def __init__(self, config: uvicorn.Config, certificate: CertificateFiles, protocol: type[LimitedProtocol]) -> None:
        """Serve each connection with a `protocol`, which has the limits, and the certificate in use when it begins."""
        super().__init__(config)
        self._certificate = certificate
        self._protocol = protocol
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """The oldest first."""
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections of a socket from now on."""
        assert sockets is not None
        (listening,) = sockets
        await super().startup([])
        self._accepting = asyncio.create_task(self._accept(listening), name="http accept")
        self._accepting.add_done_callback(log_failure)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, end the handshakes, and then do as uvicorn does."""
        tasks = {each for each in (self._accepting, *self._handshakes) if each is not None}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop, limits = asyncio.get_running_loop(), self._protocol.limits
        while True:
            try:
                connection, _address = await loop.sock_accept(listening)
            except OSError as error:  # there are no descriptors left
                logger.warning("can't accept an HTTP connection: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            num_open = len(self._handshakes) + len(self.server_state.connections)
            if num_open >= limits.max_connections and not self._make_room():
                connection.close()
            else:
                task = loop.create_task(self._shake_hands(connection), name="http handshake")
                self._handshakes[task] = None
                task.add_done_callback(lambda task: self._handshakes.pop(task, None))
            await asyncio.sleep(0)  # while others wait, `sock_accept` may return without giving the loop a turn

    def _make_room(self) -> bool:
        """End the oldest handshake, or else close the oldest connection without a whole request."""
        if not self._handshakes:
            return close_oldest(self.server_state.connections)
        oldest = next(iter(self._handshakes))
        self._handshakes.pop(oldest)
        oldest.cancel()
        return True

    async def _shake_hands(self, connection: socket.socket) -> None:
        """Hand a connection to its protocol after its handshake; one without is closed."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(self.config, self.server_state, self.lifespan.state),
                connection,
                ssl=self._certificate.current.context,
                ssl_handshake_timeout=self._protocol.limits.head_timeout_s,
            )


def log_failure(task: asyncio.Task[None]) -> None:
    """Log what a task of the listener failed with."""
    if not task.cancelled() and (failure := task.exception()) is not None:
        logger.error("the HTTP listener failed", exc_info=failure)
