"""One open page: reads its messages, opens its requests through the service, and pushes live figures."""

import asyncio
from typing import Any, NoReturn

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from completion_server.admission.rate_limiter import RateLimiter
from completion_server.core.errors import (
    CompletionError,
    InvalidRequestError,
    Limit,
    OverloadedError,
    UnauthenticatedError,
)
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
    Token,
    failure_of,
    message_of,
    note_of,
    part_of,
    sign_in_of,
)
from completion_server.http.playground.parts import Operator, PlaygroundParts
from completion_server.http.playground.sign_in import INVALID, PageUser, received, refuse
from completion_server.http.requests import Turn, request_of
from completion_server.http.writing import dumped
from completion_server.serving.completion import Completion

MAX_MESSAGE_BYTES = 512 * 1024
"""A page sends at most 80,000 characters of a document."""
_PUSH_EVERY_S = 0.5
_MESSAGES_PER_S = 50.0
_MESSAGE_BURST = 100
_BYTES_PER_S = 2 * 1024 * 1024
_BYTE_BURST = 8 * 1024 * 1024


class PageConnection:
    """Serves one page until it leaves."""

    def __init__(self, parts: PlaygroundParts, socket: WebSocket, caller: Caller, user: PageUser) -> None:
        """Serve an accepted socket, whose requests are `caller`'s."""
        self._parts = parts
        self._user = user
        self._operator = Operator(parts, lambda: user.locked_reason)
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
            data = await received(self._socket)
            now = self._service.now()
            self._rate.charge("", now)
            self._volume.charge("", now, len(data))
            await asyncio.sleep(max(self._rate.delay_s("", now), self._volume.delay_s("", now)))
            try:
                message = message_of(data)
            except InvalidRequestError as error:
                await self._end(error)
            else:
                await self._take(message, group)

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
            case Token(token=token):
                await self._renew(token)

    async def _renew(self, token: str) -> None:
        """Go on with a newer token, or end."""
        try:
            await self._user.renew(token)
        except CompletionError as error:
            self._service.emit(RequestRefused(error))
            await self._end(error)
        await self._send_about()

    async def _check_user(self) -> None:
        """Ask for another token if it has expired; end if it is of no use any more."""
        try:
            reason = self._user.check()
        except UnauthenticatedError as error:
            await self._end(error)
        else:
            if reason:
                await self._send(sign_in_of(reason))

    async def _end(self, error: CompletionError) -> NoReturn:
        """Close the connection with a reason, unless it is closed already. Raises WebSocketDisconnect."""
        self._check_connected()
        raise WebSocketDisconnect(await refuse(self._socket, error, is_open=False))

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
        if not self._user.may_report:
            self._service.emit(FeedbackRefused())
            return
        try:
            self._service.report_feedback(self._caller, report.number, Feedback(report.kind, report.characters))
        except InvalidRequestError:
            self._service.emit(FeedbackRefused())

    async def _push(self) -> None:
        await self._send_about()
        while True:
            await self._check_user()
            await self._send(self._operator.figures())
            await asyncio.sleep(_PUSH_EVERY_S)

    async def _send_about(self) -> None:
        """Say what the server is, which also tells the page that its token is taken."""
        await self._send({"type": "about"} | self._parts.about())

    async def _send(self, document: dict[str, Any]) -> None:
        """Send a message. Raises WebSocketDisconnect if the page has left."""
        self._check_connected()
        await self._socket.send_text(dumped(document))

    def _check_connected(self) -> None:
        """Raise WebSocketDisconnect once the server has closed the connection."""
        if self._socket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect(INVALID)
