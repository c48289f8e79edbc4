"""Makes requests of the server from what a dialect asks for. Pure."""

import itertools
import math
import time
from dataclasses import replace

from completion_server.admission.fields import default_max_tokens, next_request_id, sampling_of
from completion_server.admission.settings import LimitSettings
from completion_server.core.clock import Deadline
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller, Mode, Request, Snippet
from completion_server.core.trace_context import TraceContext
from completion_server.http.dialect import Asked
from completion_server.http.identity import with_document
from completion_server.http.recent import Recent

_LINE_BREAK, _CRLF = "\n", "\r\n"
_MAX_STOPS = 32
"""Plugins have one list for all languages, so it may be longer than that of a client of this server."""
_BYTES_PER_CHARACTER = 4
_numbers = itertools.count(time.time_ns() // 1_000_000)


def next_number() -> int:
    """Return the number of a new request. A restarted server does not give the numbers of the one before again."""
    return next(_numbers)


def with_unix_lines(asked: Asked) -> Asked:
    """Return a request whose lines end with "\\n".

    Models have seen few "\\r\\n", and requests that differ in nothing else have one answer.
    """
    texts = asked.prefix, asked.suffix
    num_lines = sum(text.count(_LINE_BREAK) for text in texts)
    return replace(
        asked,
        prefix=_unix(asked.prefix),
        suffix=_unix_beginning(asked.suffix),
        snippets=tuple(replace(each, text=_unix_beginning(each.text)) for each in asked.snippets),
        stop=tuple(map(_unix, asked.stop)),
        has_crlf=2 * sum(text.count(_CRLF) for text in texts) > num_lines,
    )


def _unix(text: str) -> str:
    return text.replace(_CRLF, _LINE_BREAK)


def _unix_beginning(text: str) -> str:
    """Return a text that the client may have cut in the middle of a line end."""
    return _unix(text).removesuffix("\r")


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

    Raises:
        InvalidRequestError: a text is too large, or a value is out of range.

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
    _check_text("prompt or prefix", asked.prefix, limits.max_prefix_bytes)
    _check_text("suffix", asked.suffix, limits.max_suffix_bytes)
    _check_text("filepath", asked.document_uri, limits.max_uri_bytes)
    _check_text("language", asked.language_id, limits.max_session_id_bytes)
    if len(asked.stop) > _MAX_STOPS:
        raise InvalidRequestError("stop", f"must have at most {_MAX_STOPS} entries, got {len(asked.stop)}")
    for i, stop in enumerate(asked.stop):
        if not stop:
            raise InvalidRequestError(f"stop[{i}]", "must not be empty")
        _check_text(f"stop[{i}]", stop, limits.max_stop_bytes)


def _check_text(field: str, text: str, max_bytes: int) -> None:
    if len(text) * _BYTES_PER_CHARACTER <= max_bytes:
        return
    num_bytes = len(text.encode())
    if num_bytes > max_bytes:
        raise InvalidRequestError(field, f"must be at most {max_bytes} bytes, got {num_bytes}")


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
