"""A channel to a server, with or without TLS, and the metadata that says who asks."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

Metadata = tuple[tuple[str, str], ...]

_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class ConnectionSettingsError(ValueError):
    """The settings can't make a channel; the message says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and how to prove who is who."""

    address: str
    """HOST:PORT or unix:PATH."""
    ca: Path | None = None
    """Certificates that the server's own is checked against; given, the connection is encrypted."""
    certificate: Path | None = None
    """The client's own certificate, for servers that ask for one."""
    key: Path | None = None
    token: str | None = None
    """A bearer token."""

    @contextlib.contextmanager
    def open(self) -> Iterator[grpc.Channel]:
        """Open a channel; leaving the context closes it and cancels what runs on it.

        Raises:
            ConnectionSettingsError: a certificate can't be read, or its key is missing.

        """
        options = [] if self._may_use_proxy() else [("grpc.enable_http_proxy", 0)]
        credentials = self._credentials()
        if credentials is None:
            channel = grpc.insecure_channel(self.address, options)
        else:
            channel = grpc.secure_channel(self.address, credentials, options)
        try:
            yield channel
        finally:
            channel.close()

    def metadata(self, user: str | None = None) -> Metadata:
        """Return the metadata of a call: the user and the token, where there are any.

        Raises:
            ConnectionSettingsError: one of them has characters that can't be sent.

        """
        for name, value in (("--user", user), ("--token", self.token)):
            if value and not (value.isascii() and value.isprintable()):
                msg = f"{name}: only printable ASCII can be sent"
                raise ConnectionSettingsError(msg)
        pairs = (("x-user-id", user), ("authorization", f"Bearer {self.token}" if self.token else None))
        return tuple((key, value) for key, value in pairs if value)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if (self.certificate is None) != (self.key is None):
            msg = "--tls-cert and --tls-key go together: a certificate is no use without its key"
            raise ConnectionSettingsError(msg)
        if self.ca is None and self.certificate is None:
            return None
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.certificate))

    def _may_use_proxy(self) -> bool:
        """A proxy can't reach this machine's own addresses, yet gRPC would ask it to."""
        return not self.address.startswith(("127.", "localhost", "[::1]", "unix:"))


def check_health(channel: grpc.Channel, timeout_s: float, metadata: Metadata = ()) -> str:
    """Return the health of the whole server, such as "SERVING".

    Raises:
        grpc.RpcError: it was not reached, or does not answer health checks here.

    """
    check: grpc.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse] = (
        channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
    )
    answer = check(health_pb2.HealthCheckRequest(), timeout=timeout_s, metadata=metadata)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def connect(channel: grpc.Channel, timeout_s: float) -> bool:
    """Connect, so that the next call's own times hold no handshake; return whether anyone answers.

    Asks for the health: any answer will do, even that there is no such service. A look at the channel's state instead
    would make closing it wait for gRPC's own polling.
    """
    try:
        check_health(channel, timeout_s)
    except grpc.RpcError as error:
        return isinstance(error, grpc.Call) and error.code() not in _NO_ANSWER
    return True


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        msg = f"{path} can't be read: {(error.strerror or str(error)).lower()}"
        raise ConnectionSettingsError(msg) from error
