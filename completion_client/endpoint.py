"""The address of a server, the TLS files of the connection, and the caller's name and token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc

from completion_client.errors import TokenError
from completion_client.tokens import Token

Metadata = tuple[tuple[str, str], ...]
ChannelOptions = Sequence[tuple[str, str | int]]

AUTHORIZATION = "authorization"
DEFAULT_PORT = 50051
"""The port on which servers listen for editors unless they are configured otherwise."""
DEFAULT_ADMIN_PORT = 50052
"""The port of the admin listener unless it is configured otherwise."""
_LOCAL_ADDRESSES = ("127.", "localhost", "[::1]", "unix:")


class EndpointError(ValueError):
    """A setting of an endpoint or a caller's name can't be used."""

    def __init__(self, field: str, problem: str) -> None:
        """Name the setting and the problem."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        """The setting, such as "key"."""
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address and the credentials for it.

    The connection is encrypted if `ca` or `certificate` is given. Raises EndpointError if a certificate or its key
    comes alone, or a token would be sent to another machine in plain text.
    """

    address: str
    """HOST:PORT or unix:PATH."""
    ca: Path | None = None
    """PEM file of the certificates that the server's certificate is verified against."""
    certificate: Path | None = None
    """PEM file of the client's certificate, for servers with mutual TLS."""
    key: Path | None = None
    """PEM file of the key of `certificate`."""
    token: Token | None = field(default=None, repr=False, compare=False)
    """What the caller presents here, if the server wants to know it."""

    def __post_init__(self) -> None:
        """Check that certificate and key come together, and that the token may be sent."""
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise EndpointError(missing, "certificate and key must be given together")
        if self.token is not None:
            self.check_token(self.token)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return self.ca is not None or self.certificate is not None

    def check_token(self, token: Token) -> None:
        """Check that a token may be sent to the server.

        Raises EndpointError if it would leave this machine in plain text.
        """
        if token.is_given and not (self.is_encrypted or is_loopback(self.address)):
            how = "give the file of the server's authority (ca, or --tls-ca)"
            msg = f"the token of {token.where} is not sent to {self.address} without TLS: {how}"
            raise EndpointError("token", msg)

    def open_channel(self, options: ChannelOptions = ()) -> grpc.Channel:
        """Return a channel for blocking calls, a context manager. It connects with the first call.

        All calls on it carry the token. Raises EndpointError if a PEM file can't be read, or there is no token.
        """
        options, credentials = self._options(options), self._credentials()
        if self.token is not None:
            try:
                self.token.get_blocking()
            except TokenError as error:
                raise EndpointError("token", error.message) from error
        if credentials is None:
            channel = grpc.insecure_channel(self.address, options)
        else:
            channel = grpc.secure_channel(self.address, credentials, options)
        if self.token is None or not self.token.is_given:
            return channel
        return grpc.intercept_channel(channel, TokenCalls(self.token))

    def open_aio_channel(self, options: ChannelOptions = ()) -> grpc.aio.Channel:
        """Return a channel for asyncio. It connects with the first call. Its calls are to be given the token.

        Raises EndpointError if a PEM file can't be read.
        """
        options, credentials = self._options(options), self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options)
        return grpc.aio.secure_channel(self.address, credentials, options)

    def _options(self, options: ChannelOptions) -> ChannelOptions:
        """Switch proxies off for local addresses: gRPC would use one, and no proxy can reach them."""
        is_local = self.address.startswith(_LOCAL_ADDRESSES)
        return [*(dict(options) | {"grpc.enable_http_proxy": 0}).items()] if is_local else list(options)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not self.is_encrypted:
            return None
        ca, key, certificate = _read("ca", self.ca), _read("key", self.key), _read("certificate", self.certificate)
        return grpc.ssl_channel_credentials(ca, key, certificate)


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints of "a:1,b:2,c:3", without TLS.

    Raises EndpointError if there is none, an address is empty, or one is there twice.
    """
    addresses = [each.strip() for each in text.split(",")]
    if not all(addresses):
        raise EndpointError("address", f"expected ADDRESS[,ADDRESS...], got {text!r}")
    for address in addresses:
        if addresses.count(address) > 1:
            raise EndpointError("address", f"{address} is there twice")
    return tuple(map(Endpoint, addresses))


def with_port(address: str, port: int = DEFAULT_PORT) -> str:
    """Return HOST:PORT for a host without a port; other addresses unchanged."""
    has_port = ":" in address and not (address.startswith("[") and address.endswith("]"))
    return address if has_port or not address else f"{address}:{port}"


def caller_metadata(user: str | None = None, tenant: str | None = None) -> Metadata:
    """Return the metadata that identifies a caller.

    Raises EndpointError if a name has characters other than printable ASCII.
    """
    for kind, name in (("user", user), ("tenant", tenant)):
        if name and not (name.isascii() and name.isprintable()):
            raise EndpointError(kind, "only printable ASCII can be sent")
    names = (("x-user-id", user), ("x-tenant-id", tenant))
    return tuple((key, name) for key, name in names if name)


def with_token(metadata: Metadata, token: str) -> Metadata:
    """Return a call's metadata with a token, unless that is "" or the metadata has one."""
    if not token or any(key == AUTHORIZATION for key, _ in metadata):
        return metadata
    return (*metadata, bearer(token))


def is_loopback(address: str) -> bool:
    """Return whether an address is a Unix socket or of this machine alone."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _read(name: str, path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise EndpointError(name, f"{path} can't be read: {(error.strerror or str(error)).lower()}") from error


def bearer(token: str) -> tuple[str, str]:
    """Return the metadata of a token."""
    return AUTHORIZATION, f"Bearer {token}"


class TokenCalls(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the token of the moment to each call."""

    def __init__(self, token: Token) -> None:
        """Present this token."""
        self._token = token

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:  # noqa: ANN401
        """See grpc."""
        return continuation(self._with_token(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:  # noqa: ANN401
        """See grpc."""
        return continuation(self._with_token(details), request)

    def _with_token(self, details: Any) -> Any:  # noqa: ANN401 - grpc's own named tuple
        return details._replace(metadata=(*(details.metadata or ()), bearer(self._token.get_blocking())))
