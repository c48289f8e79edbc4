"""Identifies the caller of an HTTP request.

With authentication on, a bearer token, `x-api-key` or the client's certificate says who it is. While it is off, a name
in `x-user-id` counts as it does over gRPC. Plugins often send a token that their documents suggest, so people at one
address may share it: it names no user then, it only tells sessions apart, by a digest, so that no secret gets into logs
and metrics.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from completion_server.admission.entrance import Arrival
from completion_server.admission.identity import Identity, peer_key
from completion_server.admission.settings import LimitSettings
from completion_server.auth.principal import Credentials
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE

_USER = "x-user-id"
_TENANT = "x-tenant-id"
_BEARER = "bearer "
_API_KEY = "x-api-key"
CERTIFICATE = "certificate"
"""Key of the client's certificate in a request's state; absent if it is no credential."""
_DIGITS = 16
_SESSION = "http"


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request by their names in lower case; of equal names the last counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def arrival_of(headers: Mapping[str, str], scope: Mapping[str, Any]) -> Arrival:
    """Return what a request brings."""
    host, port = scope["client"] or ("", 0)
    return Arrival(
        headers.get(_USER, ""),
        headers.get(_TENANT, ""),
        f"{host}:{port}" if host else "",
        peer_key(host) if host else "",
        Credentials(_token_of(headers), scope["state"].get(CERTIFICATE, b"")),
        headers.get(TRACEPARENT, ""),
        headers.get(TRACESTATE, ""),
    )


def caller_of(
    identity: Identity, headers: Mapping[str, str], body_user: str, limits: LimitSettings, *, trusts_names: bool = False
) -> tuple[Caller, bool]:
    """Return the caller of a request, and whether it is named: while authentication is off, a token may be shared.

    With authentication on, the client's own id in the body only tells the user's sessions apart. Else it counts like an
    unverified name, but less than one in the header, and not at all where names are trusted. A caller without any name
    is known by its address and token: plugins open a new connection for each request.

    Raises:
        InvalidRequestError: the client's id is too long.

    """
    if body_user and (identity.principal is not None or not identity.user):
        _check_name(body_user, limits)
    if identity.principal is not None:
        return identity.call(f"{_SESSION} {body_user}" if body_user else _SESSION), True
    user = identity.user or ("" if trusts_names else body_user)
    session = _SESSION + _token_digest(headers)
    caller = Caller(user, session, identity.tenant, identity.peer, identity.peer, identity.is_verified)
    return caller, bool(user)


def with_document(caller: Caller, document: int) -> Caller:
    """Return a caller in one of its documents, which is what a session stream is over gRPC.

    So at an address without names each document has limits and a lane of its own, besides the limits of the address.
    """
    return replace(caller, session=f"{caller.session} {document}", stream=document)


def _check_name(body_user: str, limits: LimitSettings) -> None:
    """Check the length of the client's own id. Raises InvalidRequestError."""
    num_bytes = len(body_user.encode())
    if num_bytes > limits.max_session_id_bytes:
        raise InvalidRequestError("user", f"must be at most {limits.max_session_id_bytes} bytes, got {num_bytes}")


def _token_of(headers: Mapping[str, str]) -> str:
    """Return the token of a request, "" without one."""
    authorization = headers.get("authorization", "")
    token = authorization[len(_BEARER) :].strip() if authorization.lower().startswith(_BEARER) else ""
    return token or headers.get(_API_KEY, "")


def _token_digest(headers: Mapping[str, str]) -> str:
    """Return what a session is called after the token of its requests, "" without one."""
    token = _token_of(headers)
    return f" {hashlib.sha256(token.encode()).hexdigest()[:_DIGITS]}" if token else ""
