"""Builds the listeners: the public one for editors, the admin one for operators; both with health and reflection."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from completion.v1 import admin_pb2, admin_pb2_grpc
from completion.v1 import completion_pb2 as pb
from completion_server.core.errors import ConfigError
from completion_server.rpc.admin import AdminServicer
from completion_server.rpc.completion import CompletionServicer
from completion_server.rpc.settings import ServerSettings, TlsSettings
from completion_server.rpc.wire import Decoder

COMPLETION_SERVICE = pb.DESCRIPTOR.services_by_name["CompletionService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


class Health:
    """The health of the whole server and of each service, as grpc.health.v1 tells it."""

    def __init__(self) -> None:
        """Start as NOT_SERVING."""
        self.servicer = health_aio.HealthServicer()

    async def set(self, *, is_serving: bool) -> None:
        """Tell those who ask and those who watch. AdminService serves as long as the process does."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", COMPLETION_SERVICE):
            await self.servicer.set(service, status)
        await self.servicer.set(ADMIN_SERVICE, health_pb2.HealthCheckResponse.SERVING)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    host = address.rpartition(":")[0].strip("[]")
    return address.startswith(("unix:", "unix-abstract:")) or host in {"localhost", "::1"} or host.startswith("127.")


def build_public_server(
    settings: ServerSettings, servicer: CompletionServicer, health: Health
) -> tuple[grpc.aio.Server, str]:
    """Return the editors' server, not yet started, and the address that it is bound to.

    Raises:
        ConfigError: the address can't be used.

    """
    server = grpc.aio.server(options=_options(settings))
    server.add_generic_rpc_handlers((_completion_handlers(servicer),))
    return _finish(server, settings.listen, "server.listen", settings, health, (COMPLETION_SERVICE,))


def build_admin_server(
    settings: ServerSettings, servicer: AdminServicer, health: Health
) -> tuple[grpc.aio.Server, str]:
    """Return the operators' server, not yet started, and the address that it is bound to.

    Raises:
        ConfigError: the address can't be used, or others could reach it without showing who they are.

    """
    if not is_loopback(settings.admin_listen) and not settings.tls.client_ca:
        msg = f"server.admin_listen: {settings.admin_listen} is not loopback; that needs server.tls.client_ca"
        raise ConfigError(msg)
    server = grpc.aio.server(options=_options(settings))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    return _finish(server, settings.admin_listen, "server.admin_listen", settings, health, (ADMIN_SERVICE,))


def _finish(
    server: grpc.aio.Server,
    address: str,
    key: str,
    settings: ServerSettings,
    health: Health,
    services: Sequence[str],
) -> tuple[grpc.aio.Server, str]:
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    if settings.reflection:
        names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    return server, _bind(server, address, key, settings.tls)


def _bind(server: grpc.aio.Server, address: str, key: str, tls: TlsSettings) -> str:
    try:
        if tls.certificate and not address.startswith("unix"):
            port = server.add_secure_port(address, _credentials(tls))
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        msg = f"{key}: can't listen on {address}; is it in use by another server?"
        raise ConfigError(msg) from error
    if address.startswith("unix"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
    client_ca = Path(tls.client_ca).read_bytes() if tls.client_ca else None
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


def _options(settings: ServerSettings) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.server.max_pending_requests", settings.max_pending_calls),
        ("grpc.server.max_pending_requests_hard_limit", 2 * settings.max_pending_calls),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server on it
        # A laptop that closed its lid says nothing: find out.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def _completion_handlers(servicer: CompletionServicer) -> grpc.GenericRpcHandler:
    """Register the methods with decoders that answer bad bytes instead of failing the call inside gRPC."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Complete": grpc.unary_stream_rpc_method_handler(
            servicer.complete, Decoder(pb.CompleteRequest), pb.CompleteResponse.SerializeToString
        ),
        "Session": grpc.stream_stream_rpc_method_handler(
            servicer.session, Decoder(pb.SessionRequest), pb.SessionResponse.SerializeToString
        ),
        "ReportFeedback": grpc.unary_unary_rpc_method_handler(
            servicer.report_feedback, Decoder(pb.ReportFeedbackRequest), pb.ReportFeedbackResponse.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler(COMPLETION_SERVICE, handlers)
