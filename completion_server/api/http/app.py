"""The paths of the listener, and whose requests they take.

A page of another site may send requests to this machine, and a name of its own may point here (DNS rebinding). So
neither a foreign Origin nor an unknown name in the Host header is served. There are no CORS headers: no page may read
an answer.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from completion_server.api.http import llama_cpp, openai, tabby
from completion_server.api.http.dialect import Dialect, Json
from completion_server.api.http.endpoints import AsgiScope, Endpoint, Endpoints
from completion_server.api.http.exchange import Receive, Send, write_json
from completion_server.api.http.requests import headers_of
from completion_server.core.errors import CompletionError, InvalidRequestError, PermissionDeniedError

logger = logging.getLogger(__name__)

_FORBIDDEN, _NOT_FOUND, _WRONG_METHOD, _INTERNAL = 403, 404, 405, 500
_LOCAL = "localhost"
READ = ("GET", "HEAD")
WRITE = ("POST",)
_READ_OR_WRITE = (*READ, *WRITE)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients are told of the server."""

    name: str
    max_model_len: int
    max_slots: int
    version: str


@dataclass(frozen=True, slots=True)
class Path:
    """What serves a path."""

    endpoint: Endpoint
    methods: tuple[str, ...]


def dialect_paths(endpoints: Endpoints, model: Callable[[], ServedModel]) -> dict[str, Path]:
    """Return the paths of all dialects. `model` may be asked only when the gate is open."""
    started_s = int(time.time())

    def shown(document: Callable[[ServedModel], Json], *options: Dialect, is_public: bool = False) -> Endpoint:
        return endpoints.document(lambda _scope, _identity: document(model()), *options, is_public=is_public)

    dialects = {
        "/v1/completions": tabby.TABBY_OR_OPENAI,
        "/v1/fim/completions": openai.CODESTRAL,
        "/infill": llama_cpp.INFILL,
        "/completion": llama_cpp.COMPLETION,
    }
    posts = {path: endpoints.completions(dialect) for path, dialect in dialects.items()}
    posts["/v1/events"] = endpoints.events
    gets: dict[str, Endpoint] = {
        "/v1/models": shown(lambda model: openai.models(model.name, started_s), openai.OPENAI),
        "/health": shown(lambda _model: {"status": "ok"}, is_public=True),
        "/props": shown(lambda model: llama_cpp.props(model.name, model.max_model_len, model.max_slots, model.version)),
        "/v1/health": shown(lambda model: tabby.health(model.name, model.version), is_public=True),
        "/v1beta/server_setting": shown(lambda _model: tabby.server_setting(), tabby.TABBY),
    }
    found = {path: Path(endpoint, WRITE) for path, endpoint in posts.items()}
    return found | {path: Path(endpoint, _READ_OR_WRITE) for path, endpoint in gets.items()}


class HttpApp:
    """Serves the requests of a listener by their paths, and logs unexpected failures."""

    def __init__(
        self, paths: Mapping[str, Path], discard_body: Callable[[Receive], Awaitable[None]], names: Collection[str]
    ) -> None:
        """Serve `paths` under IP addresses, localhost and `names`."""
        self._paths = paths
        self._names = frozenset(name.lower() for name in names)
        self._discard_body = discard_body

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve a request or refuse it."""
        is_started = False

        async def send_noted(message: MutableMapping[str, Any]) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._serve(scope, receive, send_noted)
        except Exception:
            logger.exception("an HTTP request failed")
            if is_started:
                raise  # the connection is closed, so that the client notices
            await _refuse(send, _INTERNAL, CompletionError("the server failed unexpectedly; its log has more"))

    async def _serve(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        headers, path, method = headers_of(scope), scope["path"], scope["method"]
        if fault := self.fault(headers.get("host", ""), headers.get("origin")):
            await _refuse(send, _FORBIDDEN, PermissionDeniedError(fault), {"connection": "close"})
        elif (found := self._paths.get(path)) is None:
            await self._discard_body(receive)
            await _refuse(send, _NOT_FOUND, _wrong("path", self._paths, path))
        elif method not in found.methods:
            await self._discard_body(receive)
            fault_of_method = _wrong("method", found.methods, method)
            await _refuse(send, _WRONG_METHOD, fault_of_method, {"allow": ", ".join(found.methods)})
        else:
            await found.endpoint(scope, receive, send)

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


def _wrong(name: str, allowed: Iterable[str], given: str) -> InvalidRequestError:
    return InvalidRequestError(name, f"must be one of {', '.join(allowed)}, got {given[:100]!r}")


async def _refuse(send: Send, status: int, error: CompletionError, headers: dict[str, str] | None = None) -> None:
    """Answer in JSON, and never with a redirect, since few plugins follow one with a body."""
    await write_json(send, status, openai.error_body(status, error), headers)
