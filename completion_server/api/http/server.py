"""The HTTP listener: uvicorn on the server's own event loop, without its logs and signal handlers.

asyncio's own TLS servers hand a connection over only after its handshake, so a client that never begins one would pass
by the limit of connections: here handshakes count as connections and have an end.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import uvicorn

from completion_server.api.http.app import HttpApp
from completion_server.api.http.protocol import ConnectionLimits, LimitedProtocol, close_oldest
from completion_server.core.addresses import is_loopback, split_address
from completion_server.core.certificates import CertificateFiles, hosts_of
from completion_server.core.errors import ConfigError
from completion_server.requests.limits.settings import ServerSettings

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_KEEP_ALIVE_S = 75
"""How long a connection may be idle after an answer: longer than a user thinks."""
_BACKLOG = 512


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
        self._accepting.add_done_callback(_log_failure)

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


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log what a task of the listener failed with."""
    if not task.cancelled() and (failure := task.exception()) is not None:
        logger.error("the HTTP listener failed", exc_info=failure)


@dataclass(slots=True)
class HttpListener:
    """A bound HTTP server."""

    address: str
    _server: uvicorn.Server
    _socket: socket.socket
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve from now on. Needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._socket]), name="http")
        self._task.add_done_callback(_log_failure)

    async def stop(self, grace_s: float) -> None:
        """Close the listener and idle connections at once, and the others after their answer or `grace_s`."""
        self._server.should_exit = True
        if self._task is None:
            self._socket.close()
            return
        _done, late = await asyncio.wait([self._task], timeout=grace_s)
        if late:
            self._server.force_exit = True
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await asyncio.wait([self._task], timeout=grace_s)
        self._task = None


def build_http_server(
    settings: ServerSettings,
    make_app: Callable[[Collection[str]], HttpApp],
    certificate: CertificateFiles | None,
    *,
    takes_certificates: bool = False,
) -> HttpListener:
    """Return the listener, bound and not yet started. On loopback it has no TLS, elsewhere it has the certificate's.

    `make_app` gets the names of the server. With `takes_certificates` the certificate of a client is a credential.

    Raises ConfigError: the address can't be used.
    """
    host, port = split_address(settings.http_listen)
    if is_loopback(settings.http_listen):
        certificate = None
    # No page gets here by a name of its own that the certificate lacks: its browser refuses the connection.
    names = (*settings.http_hosts, *(hosts_of(certificate.current.chain) if certificate else ()))
    limits = ConnectionLimits(settings.http_max_connections, settings.receive_timeout_s, settings.stall_timeout_s)
    members = {"limits": limits, "takes_certificates": takes_certificates}
    protocol = type("LimitedProtocol", (LimitedProtocol,), members)
    config = uvicorn.Config(
        make_app(names),
        http=protocol,
        ws="none",
        workers=1,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=_BACKLOG,
    )
    try:
        config.load()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family, dualstack_ipv6=host == "::", backlog=_BACKLOG)
    except OSError as error:
        msg = f"server.http_listen: can't listen on {settings.http_listen}: {error.strerror or error}"
        raise ConfigError(msg) from error
    bound.setblocking(False)
    shown = settings.http_listen.rpartition(":")[0]
    server = PlainServer(config) if certificate is None else TlsServer(config, certificate, protocol)
    return HttpListener(f"{shown}:{bound.getsockname()[1]}", server, bound)
