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

from completion_server.admission.callers import Callers, token_in
from completion_server.admission.fields import check_text
from completion_server.admission.settings import LimitSettings
from completion_server.core.addresses import peer_key
from completion_server.core.credential import Scope
from completion_server.core.request import Caller

CERTIFICATE = "certificate"
"""Key of the client's certificate in a request's state; absent if it is no credential."""
_DIGITS = 16
_SESSION = "http"


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request by their names in lower case; of equal names the last counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def identify(
    callers: Callers, headers: Mapping[str, str], scope: Mapping[str, Any], needed: Scope = Scope.COMPLETE
) -> Caller:
    """Return the caller of a request, who may do what `needed` names. Raises CompletionError as `Callers.identify`."""
    host, port = scope["client"] or ("", 0)
    connection, peer = (f"{host}:{port}", peer_key(host)) if host else ("", "")
    return await callers.identify(headers, connection, peer, scope["state"].get(CERTIFICATE, b""), needed)


def caller_of(
    caller: Caller, headers: Mapping[str, str], body_user: str, limits: LimitSettings, *, trusts_names: bool = False
) -> tuple[Caller, bool]:
    """Return the caller of a request, and whether it is named: while authentication is off, a token may be shared.

    With authentication on, the client's own id in the body only tells the user's sessions apart. Else it counts like an
    unverified name, but less than one in the header, and not at all where names are trusted. A caller without any name
    is known by its address and token: plugins open a new connection for each request.

    Raises:
        InvalidRequestError: the client's id is too long.

    """
    if caller.credential is not None or not caller.user:
        check_text("user", body_user, limits.max_session_id_bytes)
    if caller.credential is not None:
        return caller.in_session(f"{_SESSION} {body_user}" if body_user else _SESSION), True
    user = caller.user or ("" if trusts_names else body_user)
    session = _SESSION + _token_digest(headers)
    return replace(caller, user=user, session=session, connection=caller.peer), bool(user)


def with_document(caller: Caller, document: int) -> Caller:
    """Return a caller in one of its documents, which is what a session stream is over gRPC.

    So at an address without names each document has limits and a lane of its own, besides the limits of the address.
    """
    return replace(caller, session=f"{caller.session} {document}", stream=document)


def _token_digest(headers: Mapping[str, str]) -> str:
    """Return what a session is called after the token of its requests, "" without one."""
    token = token_in(headers)
    return f" {hashlib.sha256(token.encode()).hexdigest()[:_DIGITS]}" if token else ""
