"""Reads what a call brings of its caller: metadata, network address and certificate. `Callers` says who that is."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from completion_server.admission.callers import API_KEY, AUTHORIZATION, TENANT, USER, Callers
from completion_server.core.addresses import peer_key
from completion_server.core.credential import Scope
from completion_server.core.request import Caller
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE

_KEYS = frozenset((USER, TENANT, TRACEPARENT, TRACESTATE, AUTHORIZATION, API_KEY))
_CERTIFICATE = "x509_pem_cert"
_MAX_PEERS = 4096
"""Connections whose keys are kept, because many calls come on each."""


def metadata_of(context: Any) -> dict[str, str]:
    """Return the metadata of a call that the server reads."""
    return {
        key: value if isinstance(value, str) else value.decode("ascii", "replace")
        for key, value in context.invocation_metadata() or ()
        if key in _KEYS
    }


async def identify(
    callers: Callers, context: Any, metadata: Mapping[str, str], scope: Scope = Scope.COMPLETE
) -> Caller:
    """Return the caller of a call with these metadata. Raises CompletionError as `Callers.identify`."""
    connection, peer = split_peer(context.peer())
    # While authentication is off, no certificate is read, which saves time.
    certificate = b"" if callers.is_open else b"".join(context.auth_context().get(_CERTIFICATE, ()))
    return await callers.identify(metadata, connection, peer, certificate, scope)


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
