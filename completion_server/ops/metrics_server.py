"""Serves the metrics and the health of the server over HTTP, on a separate port and in separate threads.

The page has all metrics of a registry, with the labels that are the same for the whole server.
"""

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

_POLL_S = 0.05
"""How long `stop` waits at most: half a second by default, in which the event loop would stand still."""
_METRICS = "/metrics"
_RETRY_S = 0.25
"""Wait before the next attempt to accept after a lack of resources. The socket stays readable meanwhile."""
_RESOURCE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class LabelledRegistry(CollectorRegistry):
    """Shows the metrics of another registry with further labels, such as the server's region.

    The code that counts does not know these labels. A sample that has one of them already keeps its own value.
    """

    def __init__(
        self, source: CollectorRegistry, labels: Mapping[str, str], names: frozenset[str] = frozenset()
    ) -> None:
        """Add `labels` to the metrics of `source`; a label without a value is left out.

        `names` chooses whole metrics or single samples; all if there are none.
        """
        super().__init__()
        self._source = source
        self._labels = {name: value for name, value in labels.items() if value}
        self._names = names

    def collect(self) -> Iterator[Metric]:
        """Yield the chosen metrics of the source with the labels."""
        for metric in self._source.collect():
            is_whole = not self._names or metric.name in self._names
            samples = [each for each in metric.samples if is_whole or each.name in self._names]
            if is_whole or samples:
                shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                shown.samples = [each._replace(labels={**self._labels, **each.labels}) for each in samples]
                yield shown

    def restricted_registry(self, names: Iterable[str]) -> "LabelledRegistry":  # type: ignore[override]
        """Return the metrics with these names, of whole metrics or of single samples (`?name[]=` on the page)."""
        return LabelledRegistry(self._source, self._labels, frozenset(names))


def render(registry: CollectorRegistry, names: Iterable[str] = ()) -> str:
    """Return metrics in the text format of Prometheus; all without `names`. Safe in any thread."""
    chosen = frozenset(names)
    return generate_latest(registry.restricted_registry(chosen) if chosen else registry).decode()


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a health check."""

    is_passed: bool
    state: str
    """One word or a short sentence, the body of the answer."""


class MetricsServer:
    """Serves /metrics and health checks from threads, so that a scrape succeeds while the event loop is busy."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        probes: Mapping[str, Callable[[], Probe]] | None = None,
    ) -> None:
        """Listen. `probes` are health checks by path, called from the threads. Raises OSError if the port is in use."""
        # The times of creation would be a third of the page, and nobody uses them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        listener = _Listener6 if ":" in host else _Listener
        application = _application(make_wsgi_app(registry), dict(probes or {}))
        self._server = make_server(host, port, application, listener, handler_class=_Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True, name="metrics")
        self._thread.start()
        self.port: int = self._server.server_port

    def stop(self) -> None:
        """Stop listening."""
        self._server.is_stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _application(metrics: WSGIApplication, probes: Mapping[str, Callable[[], Probe]]) -> WSGIApplication:
    """Return the application that serves the metrics, the probes, and 404 at any other path."""

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == _METRICS:
            return metrics(environ, start_response)
        if path in probes:
            probe = probes[path]()
            status, text = HTTPStatus.OK if probe.is_passed else HTTPStatus.SERVICE_UNAVAILABLE, probe.state
        else:
            status, text = HTTPStatus.NOT_FOUND, f"not found; known here: {', '.join((_METRICS, *probes))}"
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]
        start_response(f"{status.value} {status.phrase}", headers)
        return [f"{text}\n".encode()]

    return serve


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
