"""The paths of the page."""

import secrets
from collections.abc import Mapping
from contextlib import ExitStack

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from completion_server.admission.callers import token_in
from completion_server.admission.settings import ServerSettings
from completion_server.core.errors import CompletionError
from completion_server.core.events import RequestRefused
from completion_server.core.request import Caller
from completion_server.http.identity import CERTIFICATE, headers_of, identify
from completion_server.http.playground import files
from completion_server.http.playground.access import closed_reason, refusal_reason, scope_reason
from completion_server.http.playground.connection import PageConnection
from completion_server.http.playground.parts import PlaygroundParts
from completion_server.http.playground.sign_in import PageUser, asked_token, refuse, with_token

SOCKET = "/playground/socket"
_REFUSED = 1008
_SESSION = "playground"


def playground_routes(parts: PlaygroundParts, server: ServerSettings, *, trusts_names: bool) -> list[BaseRoute]:
    """Return the routes of the page, its files and its WebSocket."""
    sockets = _Sockets(parts, server, trusts_names=trusts_names)

    async def page(_request: Request) -> Response:
        body, headers = files.page()
        return Response(body, headers=headers)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files.NAMES:
            raise HTTPException(404)
        return Response(files.read(name), headers=files.headers_of(name))

    return [
        Route("/", page, methods=["GET"]),
        Route("/playground/{name}", file, methods=["GET"]),
        WebSocketRoute(SOCKET, sockets.serve),
    ]


class _Sockets:
    """Serves the WebSockets of pages."""

    def __init__(self, parts: PlaygroundParts, server: ServerSettings, *, trusts_names: bool) -> None:
        self._parts = parts
        self._receive_timeout_s = server.receive_timeout_s
        self._closed_reason = closed_reason(server, trusts_names=trusts_names)

    async def serve(self, socket: WebSocket) -> None:
        """Serve a page to its end."""
        headers, service, callers = headers_of(socket.scope), self._parts.service, self._parts.callers
        if "origin" not in headers:  # every browser sends it; the guard has compared it with the host
            await socket.close(_REFUSED)
            return
        await socket.accept()
        try:
            shown, identified, permit = await self._admit(socket, headers)
        except WebSocketDisconnect:
            return
        except CompletionError as error:
            service.emit(RequestRefused(error))
            await refuse(socket, error, is_open=callers.is_open)
            return
        host = (socket.scope["client"] or ("",))[0]
        with permit:
            caller = identified.on_stream(f"{_SESSION} {secrets.token_hex(8)}")  # each page has its own numbers
            user = PageUser(
                callers, socket.scope, shown, identified, lambda each: self._locked(each, host, headers), service.now
            )
            await PageConnection(self._parts, socket, caller, user).run()

    async def _admit(
        self, socket: WebSocket, headers: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Caller, ExitStack]:
        """Return the page's headers, with its token, who it is, and its place among the sessions.

        Raises:
            CompletionError: it is refused.
            WebSocketDisconnect: it has left.

        """
        callers = self._parts.callers
        if not (callers.is_open or token_in(headers) or socket.scope["state"].get(CERTIFICATE)):
            headers = with_token(headers, await asked_token(socket, self._receive_timeout_s))
        caller = await identify(callers, headers, socket.scope)
        return headers, caller, self._parts.service.gate.enter_session(caller)

    def _locked(self, caller: Caller, host: str, headers: Mapping[str, str]) -> str:
        """Return why a caller may not change the server; "" for an operator."""
        if self._closed_reason:
            return self._closed_reason
        return refusal_reason(host, headers) if caller.credential is None else scope_reason(caller.credential)
