"""Receives the body of a request within its limits, and writes the answer: as one document, or as events."""

import asyncio
import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from completion_server.api.http.dialect import Answer, Dialect, Json, Reply
from completion_server.core.errors import Code, CompletionError, DeadlineError, Fault, InvalidRequestError, ShedError
from completion_server.core.outcome import AnswerPart, Delta, End, FinishReason, Outcome
from completion_server.requests.completion import Completion

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_STATUSES = {
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 408,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}
_BODY_TOO_LARGE = 413
_EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
"""The last header has nginx, and proxies that follow it, pass each event on at once."""
_UNUSED = frozenset({FinishReason.SHED, FinishReason.SUPERSEDED})
"""The answer is then empty: nobody waits for it, or it would come too late."""


class ClientGoneError(Exception):
    """The client has closed its connection."""


class BodyTooLargeError(InvalidRequestError):
    """The body exceeds the limit of a message."""


class SupersededError(CompletionError):
    """A newer request of the same user ended this one."""

    code = Code.RESOURCE_EXHAUSTED
    fault = Fault.NEITHER

    def __init__(self) -> None:
        """Say so."""
        super().__init__("the request was superseded by a newer one")


async def receive_body(receive: Receive, headers: Mapping[str, str], max_bytes: int, timeout_s: float) -> bytes:
    """Return the body of a request.

    Raises:
        BodyTooLargeError: it has more than `max_bytes`, or its header says so.
        InvalidRequestError: it is compressed.
        DeadlineError: it was not received within `timeout_s` seconds.
        ClientGoneError: the client left.

    """
    if headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequestError("header content-encoding", "must be identity: compressed bodies are not taken")
    announced, limit = headers.get("content-length", "0"), f"must be at most {max_bytes} bytes, got "
    if announced.isdecimal() and (len(announced) > len(str(max_bytes)) or int(announced) > max_bytes):
        raise BodyTooLargeError("body", limit + announced[:20])
    body, has_more = bytearray(), True
    try:
        async with asyncio.timeout(timeout_s):
            while has_more:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGoneError
                body += message.get("body", b"")
                has_more = message.get("more_body", False)
                if len(body) > max_bytes:
                    raise BodyTooLargeError("body", f"{limit}more")
    except TimeoutError:
        msg = f"the request was not received within {timeout_s:g} s"
        raise DeadlineError(msg) from None
    return bytes(body)


async def discard_body(receive: Receive, max_bytes: int, timeout_s: float) -> None:
    """Receive the body of a request that is refused, up to `max_bytes` and for at most `timeout_s` seconds.

    A client that is still writing would see its connection fail instead of the answer.
    """
    num_bytes, has_more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while has_more and num_bytes <= max_bytes:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                has_more = message.get("more_body", False)


class PartReader:
    """Reads the parts of an answer until its end, or until the client leaves."""

    def __init__(self, completion: Completion, receive: Receive) -> None:
        """Read `completion`; `receive`, which has returned the whole body, tells when the client leaves."""
        self._completion = completion
        self._receive = receive
        self._wake = asyncio.Event()
        self._gone = asyncio.get_running_loop().create_task(self._until_gone())
        self._gone.add_done_callback(lambda _gone: self._wake.set())
        completion.listen(self._wake.set)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def next(self) -> AnswerPart:
        """Return the next part. Raises ClientGoneError."""
        while True:
            self._wake.clear()
            part = self._completion.take_nowait()
            if part is not None:
                return part
            if self._gone.done():
                raise ClientGoneError
            await self._wake.wait()

    def close(self) -> None:
        """Watch the client no more."""
        self._gone.cancel()


class AnswerWriter:
    """Writes one answer."""

    def __init__(
        self, send: Send, dialect: Dialect, reply: Reply, answer: Answer, *, has_crlf: bool, sheds_as_status: bool
    ) -> None:
        """Write in the form of `reply`; `answer` has no text yet.

        With `has_crlf` the lines of what is written end with "\\r\\n"; with `sheds_as_status` a shed request fails.
        """
        self.text = ""
        """The text that was received so far."""
        self._send = send
        self._dialect = dialect
        self._reply = reply
        self._answer = answer
        self._has_crlf = has_crlf
        self._sheds_as_status = sheds_as_status or dialect.fails_unused
        self._has_begun = False

    async def write(self, reader: PartReader) -> None:
        """Write the answer.

        Raises:
            CompletionError: the request failed, and nothing was written yet.
            ClientGoneError: the client left.

        """
        while isinstance(part := await reader.next(), Delta):
            self.text += part.text
            if self._reply.is_streamed:
                await self._begin({})
                await self._events([self._reply.piece(self._with_text(part.text))], more_body=True)
        await self.write_end(part)

    async def write_end(self, end: End) -> None:
        """Write the rest of an answer. Raises CompletionError if the request failed and nothing was written yet."""
        reason, text, is_streamed = end.outcome.reason, end.text, self._reply.is_streamed
        error = self._error_of(end.outcome)
        is_quiet = reason is FinishReason.SUPERSEDED and is_streamed and not self._dialect.fails_unused
        if error is not None and not self._has_begun and not is_quiet:
            raise error
        if reason in _UNUSED:
            self.text = text = ""
        self.text += text
        answer, headers = replace(self._with_text(self.text), end=end), {"x-finish-reason": reason.value}
        if not is_streamed:
            await write_json(self._send, 200, self._reply.whole(answer), headers)
            return
        await self._begin(headers)
        if error is not None:
            # The response has no end, so that the server closes the connection. So a client that reads no errors, only
            # text, notices as well that the answer is not whole.
            await self._events([self._dialect.error(status_of(error), error)], more_body=True)
            return
        if text:
            await self._events([self._reply.piece(self._with_text(text))], more_body=True)
        await self._events(self._reply.last(answer), more_body=False)

    def _error_of(self, outcome: Outcome) -> CompletionError | None:
        """Return the error that an outcome is for the client."""
        if outcome.shed_reason is not None and self._sheds_as_status:
            return ShedError(outcome.shed_reason.value, outcome.retry_after_ms, outcome.limit)
        if outcome.reason is FinishReason.SUPERSEDED and (self._reply.is_streamed or self._dialect.fails_unused):
            return SupersededError()
        return outcome.error

    async def _begin(self, headers: dict[str, str]) -> None:
        if not self._has_begun:
            self._has_begun = True
            await _start(self._send, 200, _EVENT_STREAM | headers)

    async def _events(self, events: list[Json], *, more_body: bool) -> None:
        lines = (each if isinstance(each, str) else dumped(each) for each in events)
        body = "".join(f"data: {line}\n\n" for line in lines).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    def _with_text(self, text: str) -> Answer:
        return replace(self._answer, text=text.replace("\r\n", "\n").replace("\n", "\r\n") if self._has_crlf else text)


def status_of(error: CompletionError) -> int:
    """Return the HTTP status of an error."""
    return _BODY_TOO_LARGE if isinstance(error, BodyTooLargeError) else _STATUSES.get(error.code, 500)


async def write_error(send: Send, error: CompletionError, body: Json) -> None:
    """Write an error, with the time after which to retry, or how a caller says who it is."""
    headers = {}
    if error.code is Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_ms is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_ms / 1000))
    await write_json(send, status_of(error), body, headers)


async def write_json(send: Send, status: int, document: Json, headers: dict[str, str] | None = None) -> None:
    """Write a whole JSON response."""
    await write_body(send, status, dumped(document).encode(), {"content-type": "application/json", **(headers or {})})


async def write_body(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    """Write a whole response."""
    await _start(send, status, {"content-length": str(len(body)), **headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def dumped(document: Json) -> str:
    """Return JSON without blanks: llama.vim looks for `"content":"`."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


async def _start(send: Send, status: int, headers: dict[str, str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
