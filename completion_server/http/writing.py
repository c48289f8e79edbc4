"""Writes the answer to one request: as one document, or as server-sent events."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any

from completion_server.core.errors import Code, CompletionError, Fault, ShedError
from completion_server.core.outcome import AnswerPart, Delta, End, FinishReason
from completion_server.http.dialect import Answer, Dialect, Json, Reply
from completion_server.http.receiving import BodyTooLargeError, ClientGoneError, Receive, until_gone
from completion_server.serving.completion import Completion

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


class SupersededError(CompletionError):
    """A newer request of the same user ended this one."""

    code = Code.RESOURCE_EXHAUSTED
    fault = Fault.NEITHER

    def __init__(self) -> None:
        """Say so."""
        super().__init__("the request was superseded by a newer one")


class PartReader:
    """Reads the parts of an answer until its end, or until the client leaves."""

    def __init__(self, completion: Completion, receive: Receive) -> None:
        """Read `completion`; `receive` tells when the client leaves."""
        self._completion = completion
        self._wake = asyncio.Event()
        self._gone = asyncio.get_running_loop().create_task(until_gone(receive))
        self._gone.add_done_callback(lambda _gone: self._wake.set())
        completion.listen(self._wake.set)

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
        self,
        send: Send,
        dialect: Dialect,
        reply: Reply,
        answer: Answer,
        *,
        has_crlf: bool = False,
        sheds_as_status: bool = False,
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
        self._line_break = "\r\n" if has_crlf else "\n"
        self._sheds_as_status = sheds_as_status or dialect.fails_unused

    async def write(self, reader: PartReader) -> None:
        """Write the answer.

        Raises:
            CompletionError: the request failed, and nothing was written yet.
            ClientGoneError: the client left.

        """
        part = await reader.next()
        if self._reply.is_streamed and isinstance(part, Delta):
            await self._stream(part, reader)
            return
        while isinstance(part, Delta):
            self.text += part.text
            part = await reader.next()
        await self.write_end(part)

    async def write_end(self, end: End) -> None:
        """Write an answer of which nothing was written yet. Raises CompletionError if the request failed."""
        self._check(end)
        answer, reason = self._ended(end), {"x-finish-reason": end.outcome.reason.value}
        if not self._reply.is_streamed:
            await write_json(self._send, 200, self._reply.whole(answer), reason)
            return
        await _start(self._send, 200, _EVENT_STREAM | reason)
        if end.outcome.reason is FinishReason.SUPERSEDED:
            await self._break_off(SupersededError())
            return
        if self.text:
            await self._events([self._reply.piece(answer)], more_body=True)
        await self._events(self._reply.last(answer), more_body=False)

    async def _stream(self, part: AnswerPart, reader: PartReader) -> None:
        await _start(self._send, 200, _EVENT_STREAM)
        while isinstance(part, Delta):
            await self._event(part.text)
            part = await reader.next()
        error = part.outcome.error
        if part.outcome.reason is FinishReason.SUPERSEDED:
            self.text, error = "", SupersededError()
        if error is not None:  # the status is sent already
            await self._break_off(error)
            return
        if part.text:
            await self._event(part.text)
        await self._events(self._reply.last(self._ended(part.with_text(""))), more_body=False)

    async def _break_off(self, error: CompletionError) -> None:
        """Write an error, and leave the response without its end, so that the server closes the connection.

        So also a client that reads no errors, only text, notices that the answer is not whole.
        """
        await self._events([self._dialect.error(status_of(error), error)], more_body=True)

    async def _event(self, text: str) -> None:
        self.text += text
        await self._events([self._reply.piece(self._with_text(text))], more_body=True)

    async def _events(self, events: list[Json], *, more_body: bool) -> None:
        lines = (each if isinstance(each, str) else dumped(each) for each in events)
        body = "".join(f"data: {line}\n\n" for line in lines).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    def _check(self, end: End) -> None:
        """Raise the error that an answer without text is."""
        outcome = end.outcome
        if outcome.error is not None:
            raise outcome.error
        if outcome.shed_reason is not None and self._sheds_as_status:
            raise ShedError(outcome.shed_reason.value, outcome.retry_after_ms, outcome.limit)
        if outcome.reason is FinishReason.SUPERSEDED and self._dialect.fails_unused:
            raise SupersededError

    def _ended(self, end: End) -> Answer:
        self.text = "" if end.outcome.reason in _UNUSED else self.text + end.text
        return replace(self._with_text(self.text), end=end)

    def _with_text(self, text: str) -> Answer:
        unix = text.replace("\r\n", "\n")
        return replace(self._answer, text=text if self._line_break == "\n" else unix.replace("\n", self._line_break))


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
