"""The paths of the page."""

import secrets

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from completion_server.admission.settings import ServerSettings
from completion_server.core.errors import CompletionError
from completion_server.core.events import RequestRefused
from completion_server.http.identity import headers_of, identity_of
from completion_server.http.playground import files
from completion_server.http.playground.access import closed_reason, refusal_reason
from completion_server.http.playground.connection import PageConnection
from completion_server.http.playground.parts import PlaygroundParts

SOCKET = "/playground/socket"
_REFUSED = 1008
_TRY_LATER = 1013
_SESSION = "playground"


def playground_routes(parts: PlaygroundParts, server: ServerSettings, *, trusts_names: bool) -> list[BaseRoute]:
    """Return the routes of the page, its files and its WebSocket."""
    closed = closed_reason(server, trusts_names=trusts_names)

    async def page(_request: Request) -> Response:
        body, headers = files.page()
        return Response(body, headers=headers)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files.NAMES:
            return Response(status_code=404)
        return Response(files.read(name), headers=files.headers_of(name))

    async def socket(socket: WebSocket) -> None:
        headers, service = headers_of(socket.scope), parts.service
        if "origin" not in headers:  # every browser sends it; the guard has compared it with the host
            await socket.close(_REFUSED)
            return
        await socket.accept()
        client = socket.scope["client"]
        try:
            identity = identity_of(headers, client, parts.limits, trusts_names=trusts_names)
            service.gate.check_user(identity.user)
            permit = service.gate.enter_session(identity.named_owner, identity.limited_peer, identity.tenant_key)
        except CompletionError as error:
            service.emit(RequestRefused(error))
            await socket.close(_TRY_LATER, error.message[:100])
            return
        with permit:
            locked = closed or refusal_reason(client[0] if client else "", headers)
            caller = identity.stream(f"{_SESSION} {secrets.token_hex(8)}")  # each page has its own numbers
            await PageConnection(parts, socket, caller, locked_reason=locked).run()

    return [
        Route("/", page, methods=["GET"]),
        Route("/playground/{name}", file, methods=["GET"]),
        WebSocketRoute(SOCKET, socket),
    ]
