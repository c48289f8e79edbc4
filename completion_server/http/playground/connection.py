"""One open page: reads its messages, opens its requests through the service, and pushes live figures."""

import asyncio
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from completion_server.core.errors import CompletionError, InvalidRequestError, Limit, OverloadedError
from completion_server.core.events import Feedback, FeedbackRefused, RequestRefused
from completion_server.core.outcome import Delta
from completion_server.core.request import Caller
from completion_server.http.playground.messages import (
    Ask,
    Cancel,
    PageMessage,
    Report,
    SetK,
    Simulate,
    failure_of,
    message_of,
    note_of,
    part_of,
)
from completion_server.http.playground.parts import Operator, PlaygroundParts
from completion_server.http.requests import Turn, request_of
from completion_server.http.writing import dumped
from completion_server.limits.local import RateLimiter
from completion_server.serving.completion import Completion

MAX_MESSAGE_BYTES = 512 * 1024
"""A page sends at most 80,000 characters of a document."""
_PUSH_EVERY_S = 0.5
_MESSAGES_PER_S = 50.0
_MESSAGE_BURST = 100
_BYTES_PER_S = 2 * 1024 * 1024
_BYTE_BURST = 8 * 1024 * 1024
_INVALID = 1008
"""The close code for a message that no page sends."""
_MAX_REASON = 100
"""Characters of the reason in a close frame, which holds 123 bytes."""


class PageConnection:
    """Serves one page until it leaves."""

    def __init__(self, parts: PlaygroundParts, socket: WebSocket, caller: Caller, *, locked_reason: str) -> None:
        """Serve an accepted socket. `locked_reason` says why its user may not change the server, "" for an operator."""
        self._parts = parts
        self._operator = Operator(parts, locked_reason)
        self._service = parts.service
        self._socket = socket
        self._caller = caller
        self._open: dict[int, Completion] = {}
        self._last_number = 0
        self._rate = RateLimiter(_MESSAGES_PER_S, _MESSAGE_BURST)
        self._volume = RateLimiter(_BYTES_PER_S, _BYTE_BURST)

    async def run(self) -> None:
        """Serve it to its end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._push())
                await self._read(group)
        except* WebSocketDisconnect:  # the page was closed
            pass
        finally:
            for completion in self._open.values():
                completion.leave()

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Take messages until the page leaves, which raises, not faster than the limits."""
        while True:
            data = await self._received()
            now = self._service.now()
            self._rate.charge("", now)
            self._volume.charge("", now, len(data))
            await asyncio.sleep(max(self._rate.delay_s("", now), self._volume.delay_s("", now)))
            try:
                message = message_of(data)
            except InvalidRequestError as error:
                await self._socket.close(_INVALID, error.message[:_MAX_REASON])
                raise WebSocketDisconnect(_INVALID) from error
            await self._take(message, group)

    async def _received(self) -> str:
        """Return the next message, "" for one that is no text. Raises WebSocketDisconnect."""
        event = await self._socket.receive()
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(event["code"])
        return event.get("text") or ""

    async def _take(self, message: PageMessage, group: asyncio.TaskGroup) -> None:
        match message:
            case Ask():
                await self._ask(message, group)
            case Cancel(number=number):
                if number in self._open:
                    self._open[number].cancel()
            case Report():
                self._report(message)
            case SetK() | Simulate():
                if fault := self._operator.carry_out(message):
                    await self._send(note_of(fault))
                await self._send(self._operator.figures())

    async def _ask(self, ask: Ask, group: asyncio.TaskGroup) -> None:
        try:
            completion = self._opened(ask)
        except CompletionError as error:
            self._service.emit(RequestRefused(error))
            await self._send(failure_of(ask.number, error))
            return
        self._open[ask.number] = completion
        group.create_task(self._answer(ask.number, completion))

    def _opened(self, ask: Ask) -> Completion:
        """Open a request. Raises CompletionError."""
        if ask.number <= self._last_number:
            raise InvalidRequestError("number", f"must rise: after {self._last_number} came {ask.number}")
        self._last_number = ask.number
        limit = Limit("limits.max_requests_per_session", self._parts.limits.max_requests_per_session)
        if len(self._open) >= limit.allowed:
            raise OverloadedError(f"{len(self._open)} requests of this page are live ({limit.name})", limit=limit)
        now = self._service.now()
        turn = Turn(ask.number, ask.kind)
        return self._service.open(
            request_of(ask.asked(), self._caller, turn, self._parts.limits, began_at=now, now=now)
        )

    async def _answer(self, number: int, completion: Completion) -> None:
        """Send an answer to its end."""
        wake = asyncio.Event()
        completion.listen(wake.set)
        try:
            while True:
                wake.clear()
                part = completion.take_nowait()
                if part is None:
                    await wake.wait()
                    continue
                await self._send(part_of(number, part))
                if not isinstance(part, Delta):
                    completion.note_end_written()
                    return
        finally:
            completion.leave()
            del self._open[number]

    def _report(self, report: Report) -> None:
        """Take feedback; what is wrong with it is counted and not answered."""
        try:
            self._service.report_feedback(self._caller, report.number, Feedback(report.kind, report.characters))
        except InvalidRequestError:
            self._service.emit(FeedbackRefused())

    async def _push(self) -> None:
        await self._send({"type": "about"} | self._parts.about())
        while True:
            await self._send(self._operator.figures())
            await asyncio.sleep(_PUSH_EVERY_S)

    async def _send(self, document: dict[str, Any]) -> None:
        """Send a message. Raises WebSocketDisconnect if the page has left."""
        if self._socket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect(_INVALID)
        await self._socket.send_text(dumped(document))
