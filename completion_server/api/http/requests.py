"""Makes requests of the server from what a dialect asks for, and finds out whose they are.

With authentication on, a bearer token, `x-api-key` or the client's certificate says who it is. While it is off, a name
in `x-user-id` counts as it does over gRPC. Plugins often send a token that their documents suggest, so people at one
address may share it: it names no user then, it only tells sessions apart, by a digest, so that no secret gets into logs
and metrics.
"""

import hashlib
import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from completion_server.api.callers import Callers, token_in
from completion_server.api.fields import (
    check_entries,
    check_text,
    default_max_tokens,
    next_request_id,
    sampling_of,
)
from completion_server.api.http.dialect import Asked
from completion_server.api.http.recent import Recent
from completion_server.core.addresses import peer_key
from completion_server.core.clock import Deadline
from completion_server.core.credential import Scope
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller, Mode, Request, Snippet
from completion_server.core.trace_context import TraceContext
from completion_server.requests.limits.settings import LimitSettings

CERTIFICATE = "certificate"
"""Key of the client's certificate in a request's state; absent if it is no credential."""
_DIGITS = 16
_SESSION = "http"
_LINE_BREAK, _CRLF = "\n", "\r\n"
_MAX_STOPS = 32
"""Plugins have one list for all languages, so it may be longer than that of a client of this server."""
_numbers = itertools.count(time.time_ns() // 1_000_000)


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

    Raises InvalidRequestError: the client's id is too long.
    """
    if caller.credential is not None or not caller.user:
        check_text("user", body_user, limits.max_session_id_bytes)
    if caller.credential is not None:
        return caller.in_session(f"{_SESSION} {body_user}" if body_user else _SESSION), True
    user = caller.user or ("" if trusts_names else body_user)
    token = token_in(headers)
    session = f"{_SESSION} {hashlib.sha256(token.encode()).hexdigest()[:_DIGITS]}" if token else _SESSION
    return replace(caller, user=user, session=session, connection=caller.peer), bool(user)


def with_document(caller: Caller, document: int) -> Caller:
    """Return a caller in one of its documents, which is what a session stream is over gRPC.

    So at an address without names each document has limits and a lane of its own, besides the limits of the address.
    """
    return replace(caller, session=f"{caller.session} {document}", stream=document)


def next_number() -> int:
    """Return the number of a new request. A restarted server does not give the numbers of the one before again."""
    return next(_numbers)


def with_unix_lines(asked: Asked) -> Asked:
    """Return a request whose lines end with "\\n".

    Models have seen few "\\r\\n", and requests that differ in nothing else have one answer.
    """

    def unix(text: str, *, may_be_cut: bool = True) -> str:
        text = text.replace(_CRLF, _LINE_BREAK)
        return text.removesuffix("\r") if may_be_cut else text  # the client may cut a text in a line end

    texts = asked.prefix, asked.suffix
    num_lines = sum(text.count(_LINE_BREAK) for text in texts)
    return replace(
        asked,
        prefix=unix(asked.prefix, may_be_cut=False),
        suffix=unix(asked.suffix),
        snippets=tuple(replace(each, text=unix(each.text)) for each in asked.snippets),
        stop=tuple(unix(each, may_be_cut=False) for each in asked.stop),
        has_crlf=2 * sum(text.count(_CRLF) for text in texts) > num_lines,
    )


def request_of(
    asked: Asked,
    caller: Caller,
    recent: Recent,
    limits: LimitSettings,
    *,
    began_at: float,
    now: float,
    trace: TraceContext | None = None,
) -> Request:
    """Return a request that was received by `now`, all times in clock seconds.

    What a plugin can't know is adapted to the server's limits: the number of tokens and the amount of context.

    Raises InvalidRequestError: a text is too large, or a value is out of range.
    """
    _check_sizes(asked, limits)
    mode = Mode.SINGLE_LINE if _LINE_BREAK in asked.stop else Mode.MULTI_LINE
    given = math.inf if asked.max_tokens is None else asked.max_tokens
    return Request(
        id=next_request_id(),
        caller=with_document(caller, recent.document),
        sequence=recent.number,
        document_uri=asked.document_uri,
        language_id=asked.language_id,
        prefix=asked.prefix,
        suffix=asked.suffix,
        max_tokens=int(min(given, limits.max_tokens)) if asked.max_tokens else default_max_tokens(mode, limits),
        received_at=now,
        receive_began_at=began_at,
        snippets=_snippets(asked, limits),
        trigger=recent.trigger,
        mode=mode,
        sampling=sampling_of(asked.temperature, asked.seed),
        stop=tuple(each for each in asked.stop if each != _LINE_BREAK),
        deadline=Deadline.after(min(limits.max_deadline_s, asked.timeout_s), now),
        lane=recent.lane,
        trace=trace,
    )


def _check_sizes(asked: Asked, limits: LimitSettings) -> None:
    check_text("prompt or prefix", asked.prefix, limits.max_prefix_bytes)
    check_text("suffix", asked.suffix, limits.max_suffix_bytes)
    check_text("filepath", asked.document_uri, limits.max_uri_bytes)
    check_text("language", asked.language_id, limits.max_session_id_bytes)
    check_entries("stop", len(asked.stop), _MAX_STOPS)
    for i, stop in enumerate(asked.stop):
        if not stop:
            raise InvalidRequestError(f"stop[{i}]", "must not be empty")
        check_text(f"stop[{i}]", stop, limits.max_stop_bytes)


def _snippets(asked: Asked, limits: LimitSettings) -> tuple[Snippet, ...]:
    """Return the first snippets that fit the limits: too much context is no reason to refuse a completion."""
    fitting = [
        each
        for each in asked.snippets
        if math.isfinite(each.score)
        and len(each.text.encode()) <= limits.max_snippet_bytes
        and len(each.uri.encode()) <= limits.max_uri_bytes
    ]
    return tuple(fitting[: limits.max_snippets])
