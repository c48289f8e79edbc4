"""Identifies the caller of an RPC: the only source of its user, tenant and network address."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from completion_server.admission.identity import Identity, peer_key
from completion_server.admission.settings import LimitSettings
from completion_server.core.errors import InvalidRequestError
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE

_USER_KEY = "x-user-id"
_TENANT_KEY = "x-tenant-id"

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
    if scheme not in ("ipv4", "ipv6"):
        return "", ""
    return connection, peer_key(unquote(host).strip("[]"))
