"""The user of an open page. With authentication on, its token comes with the first message: never in an address."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from completion_server.admission.callers import AUTHORIZATION, Callers, CredentialWatch
from completion_server.core.credential import Scope
from completion_server.core.errors import Code, CompletionError, UnauthenticatedError
from completion_server.core.request import Caller
from completion_server.http.identity import identify
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
        scope: Mapping[str, Any],
        headers: Mapping[str, str],
        caller: Caller,
        locked: Callable[[Caller], str],
        now: Callable[[], float],
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        """`caller` came with `headers` in an ASGI `scope`. `locked` returns why a caller may not change the server, ""
        for an operator.

        Both clocks are in seconds.
        """
        self._callers = callers
        self._scope = scope
        self._headers = headers
        self._watch = CredentialWatch(callers, caller, unix_now)
        self._locked = locked
        self._locked_reason = locked(caller)
        self._now = now
        self._is_expired = False

    @property
    def locked_reason(self) -> str:
        """Why the user may not change the server now; "" for an operator."""
        return self._locked_reason if self._callers.is_current(self._watch.caller) else _EXPIRED

    @property
    def may_report(self) -> bool:
        """Whether the user may send feedback."""
        credential = self._watch.caller.credential
        return credential is None or Scope.FEEDBACK in credential.scopes

    async def renew(self, token: str) -> None:
        """Go on with a newer token of the same user.

        Raises:
            PermissionDeniedError: it is another user's.
            CompletionError: as `Callers.identify`.

        """
        headers = with_token(self._headers, token)
        self._watch.renew(await identify(self._callers, headers, self._scope))
        self._locked_reason, self._is_expired = self._locked(self._watch.caller), False

    def check(self) -> str:
        """Return why the page must ask for another token; "" if it need not, or was told before.

        Raises:
            UnauthenticatedError: the token was revoked, or has expired and no other came in time.

        """
        was_expired, self._is_expired = self._is_expired, self._watch.check(self._now())
        return _EXPIRED if self._is_expired and not was_expired else ""


def with_token(headers: Mapping[str, str], token: str) -> Mapping[str, str]:
    """Return a page's headers with this token."""
    return {**headers, AUTHORIZATION: f"Bearer {token}"}


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
