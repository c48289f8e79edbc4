"""Refuses requests that a web page made, and logs unexpected failures.

A page of another site may send requests to this machine, and a name of its own may point here (DNS rebinding). So
neither a foreign Origin nor an unknown name in the Host header is served. There are no CORS headers: no page may read
an answer.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from typing import Any

from completion_server.core.errors import PermissionDeniedError
from completion_server.http.identity import headers_of
from completion_server.http.openai import error_body
from completion_server.http.receiving import Receive
from completion_server.http.writing import Send, write_json

logger = logging.getLogger(__name__)

AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
_FORBIDDEN = 403
_POLICY = 1008
_LOCAL = "localhost"


class Guard:
    """Stands before an application."""

    def __init__(self, app: AsgiApp, names: Collection[str]) -> None:
        """Serve `app` under IP addresses, localhost and `names`."""
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve a request or refuse it."""
        headers = headers_of(scope)
        fault = self.fault(headers.get("host", ""), headers.get("origin"))
        if not fault:
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY, "reason": fault})  # not accepted yet: status 403
        else:
            refusal = error_body(_FORBIDDEN, PermissionDeniedError(fault))
            await write_json(send, _FORBIDDEN, refusal, {"connection": "close"})

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            logger.exception("an HTTP request failed")
            raise  # the connection is closed, so that the client notices

    def fault(self, host: str, origin: str | None) -> str:
        """Return why a request with these headers is refused, "" if it is not."""
        if not self._is_own(host):
            return f"header host: must be an IP address, localhost or one of server.http_hosts, got {host[:100]!r}"
        if origin is not None and origin.partition("://")[2] != host:
            return f"header origin: must be absent or this server's own, got {origin[:100]!r}"
        return ""

    def _is_own(self, host: str) -> bool:
        """Return whether a Host header is a name of this server. A page can't give itself an IP address for a name."""
        name = host.lower()
        if not name.endswith("]"):
            head, _, port = name.rpartition(":")
            name = head if head and port.isdecimal() else name
        if name in self._names or name == _LOCAL:
            return True
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True
