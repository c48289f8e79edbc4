"""Identifies the caller of an HTTP request.

A name in `x-user-id` counts as it does over gRPC. Tokens are not checked yet, and plugins often send one that their
documents suggest, so people at one address may share it: a bearer token or `x-api-key` names no user, it only tells
sessions apart, by a digest, so that no secret gets into logs and metrics.
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
        user,
        headers.get(_TENANT, ""),
        f"{host}:{port}" if host else "",
        peer_key(host) if host else "",
        trusts_names and bool(user),
        headers.get(TRACEPARENT, ""),
        headers.get(TRACESTATE, ""),
    )


def caller_of(
    identity: Identity, headers: Mapping[str, str], body_user: str, limits: LimitSettings, *, trusts_names: bool = False
) -> tuple[Caller, bool]:
    """Return the caller of a request, and whether it is named: a token may be shared.

    The client's own id in the body counts like an unverified name, but less than one in the header, and not at all
    where names are trusted. A caller without any name is known by its address and token: plugins open a new connection
    for each request.

    Raises:
        InvalidRequestError: the client's id is too long.

    """
    if body_user and not identity.user:
        checked_name("user", body_user, limits)
    user = identity.user or ("" if trusts_names else body_user)
    session = _SESSION + _token_name(headers)
    caller = Caller(user, session, identity.tenant, identity.peer, identity.peer, identity.is_verified)
    return caller, bool(user)


def with_document(caller: Caller, document: int) -> Caller:
    """Return a caller in one of its documents, which is what a session stream is over gRPC.

    So at an address without names each document has limits and a lane of its own, besides the limits of the address.
    """
    return replace(caller, session=f"{caller.session} {document}", stream=document)


def checked_name(field: str, name: str, limits: LimitSettings) -> None:
    """Check the length of a name.

    Raises:
        InvalidRequestError: it is too long.

    """
    num_bytes = len(name.encode())
    if num_bytes > limits.max_session_id_bytes:
        raise InvalidRequestError(field, f"must be at most {limits.max_session_id_bytes} bytes, got {num_bytes}")


def _token_name(headers: Mapping[str, str]) -> str:
    """Return what a session is called after the token of its requests, "" without one."""
    authorization = headers.get("authorization", "")
    token = authorization[len(_BEARER) :].strip() if authorization.lower().startswith(_BEARER) else ""
    token = token or headers.get("x-api-key", "")
    return f" {hashlib.sha256(token.encode()).hexdigest()[:_DIGITS]}" if token else ""
