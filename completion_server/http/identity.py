"""Identifies the caller of an HTTP request.

A name in `x-user-id` counts as it does over gRPC. Tokens are not checked yet: a bearer token or `x-api-key` only names
its user, by a digest, so that no secret gets into logs and metrics. Plugins often send a token that their documents
suggest, so people at one address may share it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from completion_server.admission.identity import Identity, peer_key
from completion_server.admission.settings import LimitSettings
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE

_USER = "x-user-id"
_TENANT = "x-tenant-id"
_BEARER = "bearer "
_DIGITS = 16
_SESSION = "http"


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request by their names in lower case; of equal names the last counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def identity_of(
    headers: Mapping[str, str], client: tuple[str, int] | None, limits: LimitSettings, *, trusts_names: bool = False
) -> Identity:
    """Return the caller of a request. With `trusts_names`, a trusted source, such as a proxy, gave its user name.

    Raises:
        InvalidRequestError: a name is too long.

    """
    for key in (_USER, _TENANT):
        checked_name(f"header {key}", headers.get(key, ""), limits)
    host, port = client or ("", 0)
    user = headers.get(_USER, "")
    return Identity(
        user or _token_name(headers),
        headers.get(_TENANT, ""),
        f"{host}:{port}" if host else "",
        peer_key(host) if host else "",
        trusts_names and bool(user),
        headers.get(TRACEPARENT, ""),
        headers.get(TRACESTATE, ""),
    )


def caller_of(
    identity: Identity, headers: Mapping[str, str], body_user: str, limits: LimitSettings
) -> tuple[Caller, bool]:
    """Return the caller of a request, and whether it is named: a token may be shared.

    The client's own id in the body counts like an unverified name, but less than one in the header. A caller without
    any name is known by its address alone: plugins open a new connection for each request.

    Raises:
        InvalidRequestError: the client's id is too long.

    """
    has_name = bool(headers.get(_USER))
    if body_user and not has_name:
        checked_name("user", body_user, limits)
    user = identity.user if has_name else body_user or identity.user
    caller = Caller(user, _SESSION, identity.tenant, identity.peer, identity.peer, identity.is_verified)
    return caller, has_name or bool(body_user)


def with_document(caller: Caller, document: int) -> Caller:
    """Return a caller in one of its documents, which is what a session stream is over gRPC.

    So at an address without names each document has limits and a lane of its own, besides the limits of the address.
    """
    return replace(caller, session=f"{_SESSION} {document}", stream=document)


def checked_name(field: str, name: str, limits: LimitSettings) -> None:
    """Check the length of a name.

    Raises:
        InvalidRequestError: it is too long.

    """
    num_bytes = len(name.encode())
    if num_bytes > limits.max_session_id_bytes:
        raise InvalidRequestError(field, f"must be at most {limits.max_session_id_bytes} bytes, got {num_bytes}")


def _token_name(headers: Mapping[str, str]) -> str:
    """Return a name for the token of a request, "" without one."""
    authorization = headers.get("authorization", "")
    token = authorization[len(_BEARER) :].strip() if authorization.lower().startswith(_BEARER) else ""
    token = token or headers.get("x-api-key", "")
    return f"token {hashlib.sha256(token.encode()).hexdigest()[:_DIGITS]}" if token else ""
