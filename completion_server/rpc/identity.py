"""Identifies the caller of an RPC: the only source of its user, tenant and network address."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Any
from urllib.parse import unquote

from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller, tenant_key_of
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE
from completion_server.rpc.settings import LimitSettings

_USER_KEY = "x-user-id"
_TENANT_KEY = "x-tenant-id"
_IPV6_NETWORK_BITS = 64


_stream_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
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
    """Whether a trusted source, such as an authenticating proxy, gave the user's name."""
    traceparent: str = ""
    """The trace context of the call, not validated; "" for none."""
    tracestate: str = ""

    @property
    def named_owner(self) -> str | None:
        """The `Caller.owner` of all sessions of the user; None if the call names no user."""
        return self.call("").owner if self.user else None

    @property
    def tenant_key(self) -> str:
        """Key of the tenant's limits, as `Caller.tenant_key`."""
        return tenant_key_of(self.tenant, self.peer, is_verified=self.is_verified)

    @property
    def source(self) -> tuple[str, ...] | str:
        """Key of the sender in limits of refused bytes: the verified user, since users share a proxy's connection, else
        the connection.
        """
        return (self.tenant, self.user) if self.is_verified else self.connection

    def call(self, session: str) -> Caller:
        """Return the caller of a single request that gives this session id."""
        return Caller(self.user, session, self.tenant, self.connection, self.peer, self.is_verified)

    def stream(self, session: str) -> Caller:
        """Return the caller of a session stream that gives this session id."""
        number = next(_stream_numbers)
        connection = self.connection or f"stream {number}"
        return Caller(self.user, session, self.tenant, connection, self.peer, self.is_verified, number)


Identify = Callable[[Any], Identity]
"""Returns the caller of an RPC from its context.

Raises InvalidRequestError for an invalid name. A token check would raise UnauthenticatedError or PermissionDeniedError.
"""


def identity_of(context: Any, limits: LimitSettings, *, trusts_names: bool = False) -> Identity:
    """Return the caller of an RPC. With `trusts_names`, a trusted source, such as a proxy, gave its user name.

    Raises:
        InvalidRequestError: a name is too long.

    """
    found = {_USER_KEY: "", _TENANT_KEY: ""}
    traces = {TRACEPARENT: "", TRACESTATE: ""}
    for key, value in context.invocation_metadata() or ():
        if key in traces:
            traces[key] = value
        elif key in found:
            found[key] = value if isinstance(value, str) else value.decode("ascii", "replace")
            if len(found[key]) > limits.max_session_id_bytes:
                limit = f"must be at most {limits.max_session_id_bytes} bytes, got {len(found[key])}"
                raise InvalidRequestError(f"metadata {key}", limit)
    connection, peer = split_peer(context.peer())
    user = found[_USER_KEY]
    is_verified = trusts_names and bool(user)
    return Identity(user, found[_TENANT_KEY], connection, peer, is_verified, traces[TRACEPARENT], traces[TRACESTATE])


def split_peer(peer: str) -> tuple[str, str]:
    """Return the keys of a connection and of its address from gRPC's name of the peer, such as "ipv4:10.0.0.7:50312".

    Both are "" on a Unix socket.
    """
    scheme, _, connection = peer.partition(":")
    host = connection.rpartition(":")[0]
    if scheme == "ipv4":
        return connection, host
    if scheme != "ipv6":
        return "", ""
    address = IPv6Address(unquote(host).strip("[]").partition("%")[0])
    if address.ipv4_mapped is not None:
        return connection, str(address.ipv4_mapped)
    return connection, str(IPv6Network((address, _IPV6_NETWORK_BITS), strict=False))
