"""Builds the gRPC servers: a public one for editors and an admin one for operators, both with health and reflection."""

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio

from completion.v1 import admin_pb2_grpc
from completion.v1 import completion_pb2 as pb
from completion_server.api.callers import Callers
from completion_server.api.rpc.admin import ADMIN_SERVICE, AdminAccess, AdminServicer
from completion_server.api.rpc.completion import CompletionServicer
from completion_server.api.rpc.listening import credentials
from completion_server.api.rpc.standard_services import add_standard_services
from completion_server.core import descriptors
from completion_server.core.addresses import is_unix_socket
from completion_server.core.certificates import CertificateFiles
from completion_server.core.errors import ConfigError
from completion_server.requests.limits.settings import LimitSettings, ServerSettings

COMPLETION_SERVICE = pb.DESCRIPTOR.services_by_name["CompletionService"].full_name

_MAX_ADMIN_MESSAGE_BYTES = 64 * 1024
_UNREAD_BYTES = 64 * 1024
"""Bytes of a call that gRPC receives before its handler reads them."""
_MAX_PENDING_CALLS = 20_000
"""Calls that may wait for their handler. gRPC's default of 1,000 rejects calls at random in a reconnect storm."""
_MAX_METADATA_BYTES = 8 * 1024
_MAX_IDLE_MS = 300_000
"""A connection without calls is closed after this long; clients open another with their next call."""
_MAX_HANDSHAKE_MS = 10_000
_PING_AFTER_MS = 18_000
_PING_TIMEOUT_MS = 9_000
"""A client that vanished without closing its connection, such as a suspended laptop, is so found within 30 s."""


class HealthReporter:
    """The health of the whole server and of each service, as grpc.health.v1 reports it."""

    def __init__(self) -> None:
        """Start as NOT_SERVING."""
        self.servicer = health_aio.HealthServicer()

    async def set(self, *, is_serving: bool) -> None:
        """Set the status for health checks and watchers. AdminService is SERVING as long as the process runs."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", COMPLETION_SERVICE):
            await self.servicer.set(service, status)
        await self.servicer.set(ADMIN_SERVICE, health_pb2.HealthCheckResponse.SERVING)


@dataclass(frozen=True, slots=True)
class Listener:
    """A gRPC server and the address that it is bound to."""

    server: grpc.aio.Server
    address: str


def build_public_server(
    settings: ServerSettings,
    limits: LimitSettings,
    servicer: CompletionServicer,
    health: HealthReporter,
    certificate: CertificateFiles | None,
) -> Listener:
    """Return the editors' server, not yet started; without a certificate it has no TLS.

    Raises ConfigError: the address can't be used.
    """
    server = grpc.aio.server(options=_options(settings, limits.max_message_bytes))
    server.add_generic_rpc_handlers((_completion_handlers(servicer),))
    return _listener(server, "listen", settings, certificate, health, COMPLETION_SERVICE)


def build_admin_server(
    settings: ServerSettings,
    servicer: AdminServicer,
    health: HealthReporter,
    callers: Callers,
    certificate: CertificateFiles | None,
) -> Listener:
    """Return the operators' server, not yet started; without a certificate it has no TLS.

    Raises ConfigError: the address can't be used.
    """
    interceptors = () if callers.is_open else (AdminAccess(callers),)
    server = grpc.aio.server(interceptors=interceptors, options=_options(settings, _MAX_ADMIN_MESSAGE_BYTES))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    return _listener(server, "admin_listen", settings, certificate, health, ADMIN_SERVICE)


def _listener(
    server: grpc.aio.Server,
    key: str,
    settings: ServerSettings,
    certificate: CertificateFiles | None,
    health: HealthReporter,
    service: str,
) -> Listener:
    """Add the standard services, and bind the server to the address at a `key` of the settings."""
    add_standard_services(server, health.servicer, settings.receive_timeout_s, service if settings.reflection else None)
    address: str = getattr(settings, key)
    try:
        if certificate is None or is_unix_socket(address):
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials(certificate))
    except RuntimeError as error:
        msg = f"server.{key}: can't listen on {address}; is it in use by another server?"
        raise ConfigError(msg) from error
    return Listener(server, address if is_unix_socket(address) else f"{address.rpartition(':')[0]}:{port}")


def _options(settings: ServerSettings, max_message_bytes: int) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _MAX_PENDING_CALLS),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server on it
        # Limits the bytes held for a call that no handler reads. gRPC's bandwidth probe would raise that to megabytes.
        ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        ("grpc.max_allowed_incoming_connections", settings.max_connections or descriptors.max_connections()),
        ("grpc.max_connection_idle_ms", _MAX_IDLE_MS),
        ("grpc.server_handshake_timeout_ms", _MAX_HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", _PING_AFTER_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),  # gRPC's own limit is a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]
    if settings.max_connection_age_s:
        options += [
            ("grpc.max_connection_age_ms", round(settings.max_connection_age_s * 1000)),
            ("grpc.max_connection_age_grace_ms", round(settings.max_connection_age_grace_s * 1000)),
        ]
    return options


def _completion_handlers(servicer: CompletionServicer) -> grpc.GenericRpcHandler:
    """Register every method as a stream of raw bytes, so that the service decides what to receive (see `intake`)."""
    methods: dict[str, tuple[Any, type[Message]]] = {
        "Complete": (servicer.complete, pb.CompleteResponse),
        "Session": (servicer.session, pb.SessionResponse),
        "ReportFeedback": (servicer.report_feedback, pb.ReportFeedbackResponse),
    }
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.stream_stream_rpc_method_handler(method, response_serializer=response.SerializeToString)
        for name, (method, response) in methods.items()
    }
    return grpc.method_handlers_generic_handler(COMPLETION_SERVICE, handlers)
