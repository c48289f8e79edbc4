"""The user of an open page. With authentication on, its token comes with the first message: never in an address."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from starlette.websockets import WebSocket, WebSocketDisconnect

from completion_server.admission.callers import Callers, VerifiedCaller
from completion_server.admission.entrance import Arrival
from completion_server.admission.identity import Identity
from completion_server.auth.principal import Scope
from completion_server.core.errors import Code, CompletionError, UnauthenticatedError
from completion_server.http.playground.messages import Token, message_of, sign_in_of
from completion_server.http.writing import dumped

INVALID = 1008
"""The close code for a message that no page sends."""
_TRY_LATER = 1013
_CLOSE_CODES = {Code.INVALID_ARGUMENT: INVALID, Code.UNAUTHENTICATED: 4401, Code.PERMISSION_DENIED: 4403}
"""After the last two a page connects again only with another token."""
_MAX_REASON_BYTES = 120
"""Of the reason in a close frame, which holds 123 bytes."""
_EXPIRED = "the token has expired"


class PageUser:
    """The user of one page, who may bring a newer token."""

    def __init__(
        self,
        callers: Callers,
        arrival: Arrival,
        identity: Identity,
        locked: Callable[[Identity], str],
        now: Callable[[], float],
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        """`identity` came of `arrival`. `locked` returns why a caller may not change the server, "" for an operator.

        Both clocks are in seconds.
        """
        self._callers = callers
        self._arrival = arrival
        self._verified = VerifiedCaller(callers, identity, unix_now)
        self._locked = locked
        self._locked_reason = locked(identity)
        self._now = now
        self._is_expired = False

    @property
    def locked_reason(self) -> str:
        """Why the user may not change the server now; "" for an operator."""
        return self._locked_reason if self._callers.is_current(self._verified.identity) else _EXPIRED

    @property
    def may_report(self) -> bool:
        """Whether the user may send feedback."""
        principal = self._verified.identity.principal
        return principal is None or Scope.FEEDBACK in principal.scopes

    async def renew(self, token: str) -> None:
        """Go on with a newer token of the same user.

        Raises:
            PermissionDeniedError: it is another user's.
            CompletionError: as `Callers.identify`.

        """
        self._verified.renew(await self._callers.identify(with_token(self._arrival, token)))
        self._locked_reason, self._is_expired = self._locked(self._verified.identity), False

    def check(self) -> str:
        """Return why the page must ask for another token; "" if it need not, or was told before.

        Raises:
            UnauthenticatedError: the token was revoked, or has expired and no other came in time.

        """
        was_expired, self._is_expired = self._is_expired, self._verified.check(self._now())
        return _EXPIRED if self._is_expired and not was_expired else ""


def with_token(arrival: Arrival, token: str) -> Arrival:
    """Return what a page brings with this token."""
    return replace(arrival, credentials=replace(arrival.credentials, token=token))


async def asked_token(socket: WebSocket, timeout_s: float) -> str:
    """Ask a page for its token and return it.

    Raises:
        UnauthenticatedError: none came within `timeout_s` seconds.
        InvalidRequestError: its message is none that a page sends.
        WebSocketDisconnect: it has left.

    """
    await socket.send_text(dumped(sign_in_of("")))
    try:
        async with asyncio.timeout(timeout_s):
            message = message_of(await received(socket))
    except TimeoutError:
        msg = f"no token came within {timeout_s:g} s"
        raise UnauthenticatedError(msg) from None
    if not isinstance(message, Token):
        raise UnauthenticatedError("a token must come first")
    return message.token


async def received(socket: WebSocket) -> str:
    """Return the next message, "" for one that is no text. Raises WebSocketDisconnect."""
    event = await socket.receive()
    if event["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(event["code"])
    return event.get("text") or ""


async def refuse(socket: WebSocket, error: CompletionError, *, is_open: bool) -> int:
    """Close a page's connection with the reason; return the close code. `is_open` tells that authentication is off."""
    code = _TRY_LATER if is_open else _CLOSE_CODES.get(error.code, _TRY_LATER)
    await socket.close(code, error.message.encode()[:_MAX_REASON_BYTES].decode(errors="ignore"))
    return code
