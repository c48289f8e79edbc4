"""A real receiver of OTLP on loopback: OpenTelemetry's own service over gRPC, and the same over HTTP."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as a collector gets it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_s: float
    end_s: float
    kind: int
    status: int
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """Trace ids."""
    state: str
    resource: dict[str, Any]
    scope: str

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


@dataclass
class Receiver:
    """Keeps what it receives, or fails as it is told to."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    fails_with: grpc.StatusCode | None = None
    hangs: threading.Event | None = None
    """Exports wait for it."""
    exports: int = 0
    address: str = ""

    def take(self, data: bytes, headers: dict[str, str]) -> None:
        self.headers = headers
        self.raw += data
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            common = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_span(span, common, scope.scope.name) for span in scope.spans]

    def roots(self) -> list[ReceivedSpan]:
        """The spans of requests, in the order in which they began."""
        found = [span for span in self.spans if span.name.startswith("completion.v1.")]
        return sorted(found, key=lambda span: span.begin_s)

    def children(self, parent: ReceivedSpan) -> dict[str, ReceivedSpan]:
        found = [span for span in self.spans if span.parent_id == parent.span_id]
        assert all(span.trace_id == parent.trace_id for span in found)
        assert len({span.name for span in found}) == len(found), "a stage has one span"
        return {span.name: span for span in sorted(found, key=lambda span: span.begin_s)}


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _span(span: Any, resource: dict[str, Any], scope: str) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name, trace_id=span.trace_id.hex(), span_id=span.span_id.hex(), parent_id=span.parent_span_id.hex(),
        begin_s=span.start_time_unix_nano / 1e9, end_s=span.end_time_unix_nano / 1e9, kind=span.kind,
        status=span.status.code, attributes=_attributes(span.attributes), state=span.trace_state,
        links=tuple(link.trace_id.hex() for link in span.links), resource=resource, scope=scope,
    )  # fmt: skip


@contextmanager
def grpc_receiver(
    receiver: Receiver | None = None, *, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> Iterator[Receiver]:
    """Receive over gRPC."""
    receiver = receiver or Receiver()

    def export(data: bytes, context: grpc.ServicerContext) -> bytes:
        receiver.exports += 1
        if receiver.hangs is not None:
            receiver.hangs.wait(60)
        if receiver.fails_with is not None:
            context.abort(receiver.fails_with, "told to fail")
        receiver.take(data, {key: str(value) for key, value in context.invocation_metadata()})
        return ExportTraceServiceResponse().SerializeToString()

    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    address = f"127.0.0.1:{port}"
    bound = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    receiver.address = f"{'http' if credentials is None else 'https'}://127.0.0.1:{bound}"
    server.start()
    try:
        yield receiver
    finally:
        if receiver.hangs is not None:
            receiver.hangs.set()
        server.stop(0).wait(10)


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    """Receive over HTTP with protobuf, at /v1/traces, itself or as a proxy."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            path = urlsplit(self.path).path  # a proxy gets the whole URL
            is_known = path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if is_known:
                receiver.take(data, {key.lower(): value for key, value in self.headers.items()})
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
