"""The HTTP listener: uvicorn on the server's own event loop, without its logs."""

import asyncio
import socket
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from completion_server.admission.settings import ServerSettings
from completion_server.core.addresses import is_loopback, split_address
from completion_server.core.certificates import CertificateFiles, hosts_of
from completion_server.core.errors import ConfigError
from completion_server.http.guard import Guard
from completion_server.http.listening import PlainServer, TlsServer, log_failure
from completion_server.http.playground.connection import MAX_MESSAGE_BYTES
from completion_server.http.protocol import ConnectionLimits, limited
from completion_server.http.web_sockets import limited_sockets

_KEEP_ALIVE_S = 75
"""How long a connection may be idle after an answer: longer than a user thinks."""
_PING_AFTER_S = 18.0
_PING_TIMEOUT_S = 9.0
"""A page whose browser vanished without closing its connection is so found within 30 s."""
_BACKLOG = 512


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
        self._task.add_done_callback(log_failure)

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
    settings: ServerSettings, app: ASGIApp, certificate: CertificateFiles | None, *, takes_certificates: bool = False
) -> HttpListener:
    """Return the listener, bound and not yet started. On loopback it has no TLS, elsewhere it has the certificate's.

    With `takes_certificates` the certificate of a client is a credential.

    Raises:
        ConfigError: the address can't be used.

    """
    host, port = split_address(settings.http_listen)
    if is_loopback(settings.http_listen):
        certificate = None
    # No page gets here by a name of its own that the certificate lacks: its browser refuses the connection.
    names = (*settings.http_hosts, *(hosts_of(certificate.current.chain) if certificate else ()))
    limits = ConnectionLimits(settings.http_max_connections, settings.receive_timeout_s, settings.stall_timeout_s)
    protocol = limited(limits, takes_certificates=takes_certificates)
    config = uvicorn.Config(
        Guard(app, names),
        http=protocol,
        ws=limited_sockets(limits),
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=_PING_AFTER_S,
        ws_ping_timeout=_PING_TIMEOUT_S,
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
    server = PlainServer(config)
    if certificate is not None:
        server = TlsServer(config, certificate, protocol)
    return HttpListener(f"{shown}:{bound.getsockname()[1]}", server, bound)
