"""Serves the metrics over HTTP, on a port and in threads of their own."""

import errno
import socket
from threading import Event, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

_RETRY_S = 0.25
"""A listener that can't accept for lack of resources tries again after this long: its socket stays readable."""
_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class MetricsServer:
    """Serves /metrics from threads, so that a busy event loop does not lose a scrape."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen. Raises OSError where the port is taken."""
        listener = _Listener6 if ":" in host else _Listener
        self._server = make_server(host, port, make_wsgi_app(registry), listener, handler_class=_Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True, name="metrics")
        self._thread.start()
        self.port: int = self._server.server_port

    def stop(self) -> None:
        """Stop listening."""
        self._server.is_stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Listener(ThreadingWSGIServer):
    """Waits where it can't accept, instead of trying again at once and taking a whole core for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - socketserver's own
        super().__init__(*args, **kwargs)
        self.is_stopping = Event()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _LACKS:
                self.is_stopping.wait(_RETRY_S)
            raise  # the serving loop takes it as no request, and goes on


class _Listener6(_Listener):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    """Writes no access log, and gives up on a client that sends nothing."""

    timeout = 10.0

    def log_message(self, *_: object) -> None:
        """Do nothing."""
