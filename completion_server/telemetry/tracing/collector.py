"""The connection to the collector: the exporter of the configured protocol, and the log of whether it works."""

import ipaddress
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace.export import SpanExporter

from completion_server.core.errors import ConfigError
from completion_server.telemetry.tracing.settings import TraceSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EXPORTERS_LOGGER = "opentelemetry.exporter"
_TRACES_PATH = "/v1/traces"
"""The path of OTLP over HTTP if the endpoint has none."""


def make_exporter(settings: TraceSettings) -> SpanExporter:
    """Return the exporter. It connects when it exports first.

    Raises:
        ConfigError: a file of the settings can't be used.

    """
    headers = read_headers(settings.headers_file)
    if settings.protocol == "http":
        url = urlsplit(settings.endpoint)
        path = url.path if url.path.strip("/") else _TRACES_PATH
        endpoint = url._replace(path=path).geturl()
        return HttpExporter(endpoint, certificate_file=settings.ca or None, headers=headers, timeout=settings.timeout_s)
    ca = _read("ca", settings.ca) if settings.ca else None
    # gRPC would use a proxy of the environment for local addresses, too.
    options = (("grpc.enable_http_proxy", 0),) if _is_local(settings.endpoint) else None
    return GrpcExporter(
        settings.endpoint,
        insecure=not settings.is_encrypted,
        credentials=grpc.ssl_channel_credentials(ca) if settings.is_encrypted else None,
        headers=headers,
        timeout=settings.timeout_s,
        channel_options=options,  # type: ignore[arg-type]  # its annotation is narrower than what gRPC takes
    )


def read_headers(path: str) -> dict[str, str]:
    """Return the headers of a file with a line "name: value" for each; none without a file.

    Raises:
        ConfigError: the file can't be read, or a line is no header. The message does not quote it: it may be a token.

    """
    headers: dict[str, str] = {}
    if not path:
        return headers
    for number, line in enumerate(_read("headers_file", path).decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        name, separator, value = (part.strip() for part in line.partition(":"))
        is_printable = f"{name}{value}".isascii() and f"{name}{value}".isprintable()
        if not (separator and name and value and is_printable) or " " in name:
            msg = f'traces.headers_file: line {number} of {path} must be "name: value", in printable ASCII'
            raise ConfigError(msg)
        headers[name.lower()] = value
    return headers


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        msg = f"traces.{key}: {path} can't be read: {(error.strerror or str(error)).lower()}"
        raise ConfigError(msg) from error


def _is_local(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class CollectorWatch(logging.Handler):
    """Logs one line when the collector stops taking spans, and one when it takes them again.

    The SDK logs several lines for each failed export. They give the reason, and go nowhere else.
    """

    def __init__(self, endpoint: str) -> None:
        """Watch exports to `endpoint`."""
        super().__init__()
        self._endpoint = endpoint
        self._reason = ""
        self._num_lost = 0
        self._is_reached = True

    def reasons(self, export: Callable[[], T]) -> T:
        """Export, and keep the reason of a failure."""
        exporters = logging.getLogger(_EXPORTERS_LOGGER)
        exporters.propagate = False
        exporters.addHandler(self)
        try:
            return export()
        finally:
            exporters.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the SDK."""
        self._reason = record.getMessage()

    def note(self, num_spans: int, *, is_reached: bool) -> None:
        """Note the result of an export."""
        if not is_reached:
            self._num_lost += num_spans
        if is_reached == self._is_reached:
            return
        self._is_reached = is_reached
        if is_reached:
            logger.info("traces: %s takes spans again; %d were lost", self._endpoint, self._num_lost)
            self._num_lost = 0
        else:
            logger.warning(
                "traces: %s takes no spans; requests are served without them: %s", self._endpoint, self._reason
            )
