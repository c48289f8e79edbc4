"""The connection to the collector: the exporter of the configured protocol, and the log of whether it works."""

import ipaddress
import logging
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import requests
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from completion_server.core.errors import ConfigError
from completion_server.telemetry.tracing.settings import TraceSettings
from completion_server.telemetry.tracing.tracer import TraceMetrics

logger = logging.getLogger(__name__)

_EXPORTERS_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http._common",
)
_RETRIED = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""The errors after which an export is tried again: those of the OTLP specification."""
_RECONNECT_MS = 1000, 5000
"""The shortest and the longest pause between two attempts to connect. gRPC's own reaches two minutes."""
_TRACES_PATH = "/v1/traces"
"""The path of OTLP over HTTP if the endpoint has none."""


def make_exporter(settings: TraceSettings) -> SpanExporter:
    """Return the exporter. It connects when it exports first.

    What the SDK would read from the environment is given, except for headers, and certificates with the protocol http.

    Raises:
        ConfigError: a file of the settings can't be used.

    """
    headers, ca = read_files(settings)
    if settings.protocol == "http":
        url = urlsplit(settings.endpoint)
        path = url.path if url.path.strip("/") else _TRACES_PATH
        endpoint = url._replace(path=path).geturl()
        return HttpExporter(
            endpoint,
            certificate_file=settings.ca or None,
            headers=headers,
            timeout=settings.timeout_s,
            compression=HttpCompression.NoCompression,
            session=_http_session(is_local=_is_local(settings.endpoint)),
        )
    least, most = _RECONNECT_MS
    options = [("grpc.initial_reconnect_backoff_ms", least), ("grpc.max_reconnect_backoff_ms", most)]
    if _is_local(settings.endpoint):
        options.append(("grpc.enable_http_proxy", 0))  # a proxy of the environment can't reach it
    return GrpcExporter(
        settings.endpoint,
        insecure=not settings.is_encrypted,
        credentials=grpc.ssl_channel_credentials(ca) if settings.is_encrypted else None,
        headers=headers,
        timeout=settings.timeout_s,
        compression=grpc.Compression.NoCompression,
        retryable_error_codes=_RETRIED,
        channel_options=tuple(options),  # type: ignore[arg-type]  # its annotation is narrower than what gRPC takes
    )


def read_files(settings: TraceSettings) -> tuple[dict[str, str], bytes | None]:
    """Return the headers, and the PEM text of the authority that the collector's certificate is verified against.

    The latter is None if there is no such file: then it is the system's.

    Raises:
        ConfigError: a file can't be used.

    """
    headers = _read_headers(settings.headers_file)
    if not settings.ca:
        return headers, None
    ca = _read("ca", settings.ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(settings.ca)
    except ssl.SSLError as error:
        msg = f"traces.ca: {settings.ca} holds no certificates in PEM format"
        raise ConfigError(msg) from error
    return headers, ca


def _read_headers(path: str) -> dict[str, str]:
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


def _http_session(*, is_local: bool) -> requests.Session:
    """Return a session that sends the given headers as they are."""
    session = requests.Session()
    session.auth = _keep_headers
    if is_local:
        session.trust_env = False  # a proxy of the environment can't reach it
    return session


def _keep_headers(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add no authentication. Without this, `requests` replaces a token by the password of ~/.netrc."""
    return request


def _is_local(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class WatchedExporter(SpanExporter):
    """Exports spans, counts them by the result, and logs one line when the collector stops or begins to take them.

    The SDK's exporters log several lines for each failed export, and give the reason of a failure nowhere else. So this
    takes the lines of their loggers while it exports, and lets none pass.
    """

    def __init__(self, exporter: SpanExporter, endpoint: str, metrics: TraceMetrics) -> None:
        """Export with `exporter` to `endpoint`."""
        self._exporter = exporter
        self._endpoint = endpoint
        self._metrics = metrics
        self.num_handled = 0
        """Spans that were exported or are lost."""
        self._reason = ""
        self._num_lost = 0
        self._is_reached = True
        self._thread = 0
        self._is_shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export one batch; never raises."""
        self._reason, self._thread = "", threading.get_ident()
        loggers = [logging.getLogger(name) for name in _EXPORTERS_LOGGERS]
        for each in loggers:
            each.filters.insert(0, self._take_line)  # the SDK has filters there that drop repeated lines
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - a fault of the SDK; the thread must go on
            result, self._reason = SpanExportResult.FAILURE, type(error).__name__
        finally:
            for each in loggers:
                each.removeFilter(self._take_line)
        is_reached = result is SpanExportResult.SUCCESS
        self._note(len(spans), is_reached=is_reached)
        self.num_handled += len(spans)
        self._metrics.exported(len(spans), is_reached=is_reached)
        return result

    def shutdown(self) -> None:
        """Cancel an export that runs, and let further ones fail. May be called again."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._exporter.shutdown()

    def _take_line(self, record: logging.LogRecord) -> bool:
        """Take a line of the SDK that belongs to this export."""
        if record.thread != self._thread:
            return True
        self._reason = record.getMessage()
        return False

    def _note(self, num_spans: int, *, is_reached: bool) -> None:
        if not is_reached:
            self._num_lost += num_spans
        if is_reached == self._is_reached:
            return
        self._is_reached = is_reached
        if is_reached:
            logger.info("traces: %s takes spans again; %d were lost", self._endpoint, self._num_lost)
            self._num_lost = 0
        else:
            message = "traces: %s takes no spans; requests are served without them: %s"
            logger.warning(message, self._endpoint, self._reason or "no reason is known")
