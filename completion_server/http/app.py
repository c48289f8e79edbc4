"""The paths of the listener."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from completion_server.admission.gate import Gate
from completion_server.core.errors import CompletionError, InvalidRequestError
from completion_server.http import llama_cpp, openai, tabby
from completion_server.http.dialect import Dialect, Json
from completion_server.http.endpoints import Endpoint, Endpoints
from completion_server.http.receiving import Receive
from completion_server.http.writing import Send, status_of, write_error, write_json

logger = logging.getLogger(__name__)

Routes = Sequence[BaseRoute]
_INTERNAL, _WRONG_METHOD = 500, 405


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients are told of the server."""

    name: str
    max_model_len: int
    max_slots: int
    version: str


def build_app(endpoints: Endpoints, gate: Gate, model: Callable[[], ServedModel], further: Routes = ()) -> Starlette:
    """Return the application, with `further` routes. `model` may be asked only when the gate is open."""
    started_s = int(time.time())

    def shown(
        document: Callable[[ServedModel], Json], dialect: Dialect = llama_cpp.INFILL, *, is_public: bool = False
    ) -> Endpoint:
        """Return the endpoint that shows a document, or that the server can't serve. Everybody may see a public one."""

        async def answer(scope: Mapping[str, Any], _receive: Receive, send: Send) -> None:
            try:
                if not is_public:
                    await endpoints.check_reader(scope)
                gate.check()
            except CompletionError as error:
                await write_error(send, error, dialect.error(status_of(error), error))
            else:
                await write_json(send, 200, document(model()))

        return answer

    def completions(dialect: Dialect) -> Endpoint:
        return endpoints.completions(lambda _body: dialect, dialect)

    def dialect_of(body: Mapping[str, Json]) -> Dialect:
        return openai.OPENAI if body.get("segments") is None else tabby.TABBY

    posts: dict[str, Endpoint] = {
        "/v1/completions": endpoints.completions(dialect_of, openai.OPENAI),
        "/v1/fim/completions": completions(openai.CODESTRAL),
        "/infill": completions(llama_cpp.INFILL),
        "/completion": completions(llama_cpp.COMPLETION),
        "/v1/events": endpoints.events,
    }
    gets: dict[str, Endpoint] = {
        "/v1/models": shown(lambda model: openai.models(model.name, started_s), openai.OPENAI),
        "/health": shown(lambda _model: {"status": "ok"}, is_public=True),
        "/props": shown(lambda model: llama_cpp.props(model.name, model.max_model_len, model.max_slots, model.version)),
        "/v1/health": shown(lambda model: tabby.health(model.name, model.version), is_public=True),
        "/v1beta/server_setting": shown(lambda _model: tabby.server_setting(), tabby.TABBY),
    }
    app = Starlette(
        routes=[
            *(Route(path, _Asgi(endpoint), methods=["POST"]) for path, endpoint in posts.items()),
            *(Route(path, _Asgi(endpoint), methods=["GET", "POST"]) for path, endpoint in gets.items()),
            *further,
        ],
        exception_handlers={HTTPException: _refusal(endpoints, (*posts, *gets))},
    )
    app.router.redirect_slashes = False
    return app


def _refusal(endpoints: Endpoints, paths: Sequence[str]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return what answers a request with a wrong path or method.

    It is an error in JSON and never a redirect, since few plugins follow one with a body.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        await endpoints.discard_body(request.receive)
        name, allowed, given = "path", ", ".join(paths), request.url.path
        if error.status_code == _WRONG_METHOD:
            name, allowed, given = "method", (error.headers or {})["Allow"], request.method
        fault = InvalidRequestError(name, f"must be one of {allowed}, got {given[:100]!r}")
        return JSONResponse(openai.error_body(error.status_code, fault), error.status_code, error.headers)

    return refuse


class _Asgi:
    """An endpoint that Starlette calls as it is: functions get a request and return a response.

    An unexpected failure is answered here, because Starlette would answer it with plain text.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        is_started = False

        async def send_noted(message: MutableMapping[str, Any]) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._endpoint(scope, receive, send_noted)
        except Exception:
            if is_started:
                raise
            logger.exception("an HTTP request failed")
            failure = CompletionError("the server failed unexpectedly; its log has more")
            await write_json(send, _INTERNAL, openai.error_body(_INTERNAL, failure))
