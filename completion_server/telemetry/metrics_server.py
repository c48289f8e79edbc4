"""Serves the metrics over HTTP, on a separate port and in separate threads."""

import errno
import socket
from threading import Event, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

_RETRY_S = 0.25
"""Wait before the next attempt to accept after a lack of resources. The socket stays readable meanwhile."""
_RESOURCE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class MetricsServer:
    """Serves /metrics from threads, so that a scrape succeeds while the event loop is busy."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen. Raises OSError if the port is in use."""
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
    """Waits after a failed accept instead of retrying at once, which would occupy a whole core."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - socketserver's own
        super().__init__(*args, **kwargs)
        self.is_stopping = Event()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _RESOURCE_ERRORS:
                self.is_stopping.wait(_RETRY_S)
            raise  # the serving loop catches it and continues


class _Listener6(_Listener):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    """Writes no access log, and closes the connection of a client that sends nothing for 10 s."""

    timeout = 10.0

    def log_message(self, *_: object) -> None:
        """Do nothing."""
