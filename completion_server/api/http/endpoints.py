"""Answers the requests of a listener: completions in any dialect, actions such as Tabby's events, and documents."""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from completion_server.api.callers import Callers
from completion_server.api.http import exchange, llama_cpp, requests, tabby
from completion_server.api.http.dialect import Answer, Asked, Dialect, Json, parse
from completion_server.api.http.exchange import (
    AnswerWriter,
    ClientGoneError,
    PartReader,
    Receive,
    Send,
    status_of,
    write_json,
)
from completion_server.api.http.recent import Recent, RecentRequests
from completion_server.api.http.requests import headers_of, identify, with_document
from completion_server.core.credential import Scope
from completion_server.core.errors import (
    CompletionError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from completion_server.core.events import Event, FeedbackRefused, RequestRefused
from completion_server.core.outcome import SUPERSEDED, End, FinishReason, Outcome
from completion_server.core.request import Caller
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE, BeginTrace, no_trace
from completion_server.requests.completion import Completion
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings, ServerSettings
from completion_server.requests.service import Service

AsgiScope = Mapping[str, Any]
Endpoint = Callable[[Any, Any, Any], Awaitable[None]]
_NOTHING = End(Outcome(FinishReason.STOP))


class Endpoints:
    """The endpoints of one listener that take a body."""

    def __init__(
        self,
        service: Service,
        callers: Callers,
        server: ServerSettings,
        limits: LimitSettings,
        admission: AdmissionSettings,
        model: Callable[[], str],
        *,
        sheds_as_status: bool = False,
        begin_trace: BeginTrace = no_trace,
    ) -> None:
        """Answer `callers` through `service`. `model` returns the name that answers give.
        With `sheds_as_status` shed requests fail instead of being answered with empty text.
        """
        self._service = service
        self._limits = limits
        self._receive_timeout_s = server.receive_timeout_s
        self._max_body_bytes = limits.max_message_bytes
        self._caller_of = partial(requests.caller_of, limits=limits, trusts_names=admission.trust_user_names)
        self._callers = callers
        self._recent = RecentRequests()
        self._model = model
        self._sheds_as_status = sheds_as_status
        self._begin_trace = begin_trace

    def completions(self, dialect: Dialect) -> Endpoint:
        """Return the endpoint that completes in a dialect."""

        async def answer(scope: AsgiScope, receive: Receive, send: Send) -> None:
            headers, began_at = headers_of(scope), self._service.now()
            try:
                caller = await self._identify(scope, headers, receive)
                self._service.gate.check()
                given, reply = dialect.translate(parse(await self._body(receive, headers)))
                asked = requests.with_unix_lines(given)
                completion, recent = self._open(asked, caller, headers, began_at)
            except CompletionError as error:
                self._service.emit(RequestRefused(error))
                raise
            known = Answer(recent.number, int(time.time()), self._model())
            forms = {"has_crlf": asked.has_crlf, "sheds_as_status": self._sheds_as_status}
            writer = AnswerWriter(send, dialect, reply, known, **forms)
            if completion is None:
                await writer.write_end(_NOTHING)
                return
            with self._callers.watching(caller, completion.cancel):
                await self._write(completion, recent, writer, receive)

        return _told(answer, dialect)

    def action(
        self,
        act: Callable[[AsgiScope, Caller, bytes], Json],
        needed: Scope,
        dialect: Dialect,
        refused: Callable[[CompletionError], Event],
    ) -> Endpoint:
        """Return the endpoint of a path whose requests cost no engine time. `act` returns the answer to a body."""

        async def answer(scope: AsgiScope, receive: Receive, send: Send) -> None:
            headers = headers_of(scope)
            try:
                caller = await self._identify(scope, headers, receive, needed)
                found = act(scope, caller, await self._body(receive, headers))
            except CompletionError as error:
                self._service.emit(refused(error))
                raise
            await write_json(send, 200, found)

        return _told(answer, dialect)

    @property
    def events(self) -> Endpoint:
        """The endpoint that takes an event of Tabby's clients as feedback."""
        return self.action(self._take_event, Scope.FEEDBACK, tabby.TABBY, lambda _error: FeedbackRefused())

    def document(
        self,
        make: Callable[[AsgiScope, Caller | None], Json],
        dialect: Dialect = llama_cpp.INFILL,
        *,
        is_public: bool = False,
    ) -> Endpoint:
        """Return the endpoint that shows a document, or that the server can't serve.

        Everybody may see a public one, and any while authentication is off: `make` gets no caller then.
        """

        async def answer(scope: AsgiScope, _receive: Receive, send: Send) -> None:
            is_open = is_public or self._callers.is_open
            caller = None if is_open else await identify(self._callers, headers_of(scope), scope)
            self._service.gate.check()
            await write_json(send, 200, make(scope, caller))

        return _told(answer, dialect)

    async def discard_body(self, receive: Receive) -> None:
        """Receive the body of a request that is refused; see `exchange.discard_body`."""
        await exchange.discard_body(receive, self._max_body_bytes, self._receive_timeout_s)

    def _take_event(self, scope: AsgiScope, caller: Caller, data: bytes) -> Json:
        select_kind = parse_qs(scope["query_string"].decode("latin-1")).get("select_kind", [""])[-1]
        event = tabby.event_of(parse(data), select_kind)
        if event is None:
            return {}
        number, kind, characters = event
        recent = self._recent.find(number)
        user = recent.user if recent else ""  # events have no `user`
        caller, _has_name = self._caller_of(caller, headers_of(scope), user)
        if recent is None or recent.owner != caller.owner:
            raise InvalidRequestError("completion_id", "must be that of one of the last completions of its user")
        caller = with_document(caller, recent.document)
        self._service.charge(caller)
        self._service.report_feedback(caller, number, tabby.feedback_of(kind, recent.text, characters))
        return {}

    async def _identify(
        self, scope: AsgiScope, headers: Mapping[str, str], receive: Receive, needed: Scope = Scope.COMPLETE
    ) -> Caller:
        """Return the caller of a request, who may do what `needed` names. Raises CompletionError."""
        try:
            return await identify(self._callers, headers, scope, needed)
        except (UnauthenticatedError, PermissionDeniedError):
            await self.discard_body(receive)
            raise

    async def _body(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        return await exchange.receive_body(receive, headers, self._max_body_bytes, self._receive_timeout_s)

    def _open(
        self, asked: Asked, caller: Caller, headers: Mapping[str, str], began_at: float
    ) -> tuple[Completion | None, Recent]:
        """Open a request; None for one that wants no text, which is checked and charged."""
        caller, has_name = self._caller_of(caller, headers, asked.user)
        now = self._service.now()
        recent = self._recent.place(caller.owner, asked, requests.next_number(), now, has_name=has_name)
        trace = self._begin_trace(headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, ""))
        request = requests.request_of(asked, caller, recent, self._limits, began_at=began_at, now=now, trace=trace)
        if asked.is_warm_up:
            self._service.charge(caller)  # not of a document: it may be a new one each time
            return None, recent
        completion = self._service.open(request)
        if completion.is_rate_limited:
            return completion, recent
        for other in self._recent.add(recent, completion, now):
            other.cancel(SUPERSEDED)
        return completion, recent

    async def _write(self, completion: Completion, recent: Recent, writer: AnswerWriter, receive: Receive) -> None:
        reader = PartReader(completion, receive)
        try:
            await writer.write(reader)
            completion.note_end_written()
        finally:
            reader.close()
            completion.leave()
            self._recent.end(recent, writer.text, self._service.now())


def _told(endpoint: Endpoint, dialect: Dialect) -> Endpoint:
    """Return an endpoint whose errors are written in a dialect."""

    async def answer(scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            await endpoint(scope, receive, send)
        except ClientGoneError:
            return
        except CompletionError as error:
            await exchange.write_error(send, error, dialect.error(status_of(error), error))

    return answer
