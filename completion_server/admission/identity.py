"""The caller of a call, whatever its transport: its user, tenant and network address."""

import itertools
from ipaddress import IPv6Address, IPv6Network, ip_address

from completion_server.auth.principal import Principal
from completion_server.core.events import Actor
from completion_server.core.immutable import immutable
from completion_server.core.request import Caller

_IPV6_NETWORK_BITS = 64

_stream_numbers = itertools.count(1)


@immutable
class Identity:
    """The caller of a call, by its connection and metadata."""

    user: str
    """Name of the user, "" if the metadata has none."""
    tenant: str
    connection: str
    """Address and port of the peer; "" on a Unix socket, where gRPC can't tell connections apart."""
    peer: str
    """Key of the peer's address: the IPv4 address, or the /64 network of an IPv6 address, since a host has many."""
    is_verified: bool = False
    """Whether a verified credential or a trusted proxy gave the user's name."""
    traceparent: str = ""
    """The trace context of the call, not validated; "" for none."""
    tracestate: str = ""
    principal: Principal | None = None
    """The verified caller if authentication is on."""

    @property
    def session_keys(self) -> tuple[str | None, str, str]:
        """Keys of a named user, the address and the tenant in the limits of sessions, for `Gate.enter_session`."""
        caller = self.call("")
        return caller.owner if self.user else None, caller.limited_peer, caller.tenant_key

    @property
    def limited_peer(self) -> str:
        """As `Caller.limited_peer`."""
        return "" if self.is_verified else self.peer

    @property
    def credential(self) -> str:
        """Names the verified credential; "" if authentication is off."""
        return "" if self.principal is None else self.principal.credential

    @property
    def actor(self) -> Actor:
        """The caller as the audit log names it."""
        return Actor(self.user, self.tenant, self.credential, self.peer, self.is_verified)

    @property
    def source(self) -> tuple[str, ...] | str:
        """Key of the sender in limits of refused bytes: the verified user, since users share a proxy's connection, else
        the connection.
        """
        return (self.tenant, self.user) if self.is_verified else self.connection

    def call(self, session: str) -> Caller:
        """Return the caller of a single request that gives this session id."""
        return Caller(
            self.user, session, self.tenant, self.connection, self.peer, self.is_verified, credential=self.credential
        )

    def stream(self, session: str) -> Caller:
        """Return the caller of a session stream that gives this session id."""
        number = next_stream_number()
        connection = self.connection or f"stream {number}"
        names = (self.user, session, self.tenant, connection, self.peer, self.is_verified)
        return Caller(*names, number, self.credential)


def next_stream_number() -> int:
    """Return a new `Caller.stream`, unique in this process."""
    return next(_stream_numbers)


def peer_key(host: str) -> str:
    """Return the key of an IP address: the IPv4 address, or the /64 network of an IPv6 address."""
    address = ip_address(host.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, _IPV6_NETWORK_BITS), strict=False))
