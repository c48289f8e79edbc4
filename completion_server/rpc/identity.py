"""Reads what a call brings of its caller: names, credentials and network address. `Entrance` says who that is."""

from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from completion_server.admission.entrance import Arrival
from completion_server.admission.identity import peer_key
from completion_server.auth.principal import Credentials
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE

_USER = "x-user-id"
_TENANT = "x-tenant-id"
_AUTHORIZATION = "authorization"
_API_KEY = "x-api-key"
_KEYS = frozenset((_USER, _TENANT, TRACEPARENT, TRACESTATE, _AUTHORIZATION, _API_KEY))
_BEARER = "bearer "
_CERTIFICATE = "x509_pem_cert"
_NO_CREDENTIALS = Credentials()
_MAX_PEERS = 4096
"""Connections whose keys are kept, because many calls come on each."""


def arrival_of(context: Any, *, with_credentials: bool = True) -> Arrival:
    """Return what a call brings. Without `with_credentials` no token or certificate is read, which saves time."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in _KEYS:
            found[key] = value if isinstance(value, str) else value.decode("ascii", "replace")
    connection, peer = split_peer(context.peer())
    return Arrival(
        found.get(_USER, ""),
        found.get(_TENANT, ""),
        connection,
        peer,
        _credentials_of(context, found) if with_credentials else _NO_CREDENTIALS,
        found.get(TRACEPARENT, ""),
        found.get(TRACESTATE, ""),
    )


def _credentials_of(context: Any, found: dict[str, str]) -> Credentials:
    token = token_of(found.get(_AUTHORIZATION, "")) or found.get(_API_KEY, "")
    return Credentials(token, b"".join(context.auth_context().get(_CERTIFICATE, ())))


def token_of(authorization: str) -> str:
    """Return the token in a value of `authorization`; "" if it has none or is of another scheme."""
    return authorization[len(_BEARER) :].strip() if authorization[: len(_BEARER)].lower() == _BEARER else ""


@lru_cache(_MAX_PEERS)
def split_peer(peer: str) -> tuple[str, str]:
    """Return the keys of a connection and of its address from gRPC's name of the peer, such as "ipv4:10.0.0.7:50312".

    Both are "" on a Unix socket.
    """
    scheme, _, connection = peer.partition(":")
    host = connection.rpartition(":")[0]
    if scheme not in ("ipv4", "ipv6"):
        return "", ""
    return connection, peer_key(unquote(host).strip("[]"))
