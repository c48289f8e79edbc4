"""Answers the requests of a listener: completions in any dialect, and Tabby's events."""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.datastructures import QueryParams

from completion_server.admission.callers import Callers
from completion_server.admission.settings import AdmissionSettings, LimitSettings, ServerSettings
from completion_server.core.credential import Scope
from completion_server.core.errors import (
    CompletionError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from completion_server.core.events import FeedbackRefused, RequestRefused
from completion_server.core.outcome import End, FinishReason, Outcome
from completion_server.core.request import Caller
from completion_server.core.trace_context import TRACEPARENT, TRACESTATE, BeginTrace, no_trace
from completion_server.http import tabby
from completion_server.http.dialect import Answer, Asked, Dialect, parse
from completion_server.http.identity import caller_of, headers_of, identify, with_document
from completion_server.http.line_ends import with_unix_lines
from completion_server.http.receiving import (
    ClientGoneError,
    Receive,
    discard_body,
    receive_body,
)
from completion_server.http.recent import Recent, RecentRequests
from completion_server.http.requests import next_number, request_of
from completion_server.http.writing import AnswerWriter, PartReader, Send, status_of, write_error, write_json
from completion_server.scheduling.actions import SUPERSEDED
from completion_server.serving.completion import Completion
from completion_server.serving.service import Service

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
        """Answer the callers that `callers` identifies through `service`. `model` returns the name that answers give.
        With `sheds_as_status` shed requests fail instead of being answered with empty text.
        """
        self._service = service
        self._limits = limits
        self._receive_timeout_s = server.receive_timeout_s
        self._max_body_bytes = server.max_message_bytes or limits.max_message_bytes
        self._caller_of = partial(caller_of, limits=limits, trusts_names=admission.trust_user_names)
        self._callers = callers
        self._recent = RecentRequests()
        self._model = model
        self._sheds_as_status = sheds_as_status
        self._begin_trace = begin_trace

    def completions(self, choose: Callable[[Mapping[str, Any]], Dialect], fallback: Dialect) -> Endpoint:
        """Return the endpoint of a path; `choose` returns the dialect of a body, `fallback` answers before that."""

        async def answer(scope: AsgiScope, receive: Receive, send: Send) -> None:
            dialect, is_accepted = fallback, False
            try:
                headers = headers_of(scope)
                began_at = self._service.now()
                caller = await self._identify(scope, headers, receive)
                self._service.gate.check()
                body = parse(await self._body(receive, headers))
                dialect = choose(body)
                asked, reply = with_unix_lines(*dialect.translate(body))
                completion, recent = self._open(asked, caller, headers, began_at)
                is_accepted = True
                answer = Answer(recent.number, int(time.time()), self._model())
                writer = AnswerWriter(send, dialect, reply, answer, sheds_as_status=self._sheds_as_status)
                if completion is None:
                    await writer.write_end(_NOTHING)
                else:
                    with self._callers.watching(caller, completion.cancel):
                        await self._write(completion, recent, writer, receive)
            except ClientGoneError:
                return
            except CompletionError as error:
                if not is_accepted:  # else its end is reported
                    self._service.emit(RequestRefused(error))
                await write_error(send, error, dialect.error(status_of(error), error))

        return answer

    async def events(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Take an event of Tabby's clients as feedback."""
        try:
            headers = headers_of(scope)
            caller = await self._identify(scope, headers, receive, Scope.FEEDBACK)
            select_kind = QueryParams(scope["query_string"]).get("select_kind", "")
            event = tabby.event_of(parse(await self._body(receive, headers)), select_kind)
            if event is not None:
                self._report(event, caller, headers)
            await write_json(send, 200, {})
        except ClientGoneError:
            return
        except CompletionError as error:
            self._service.emit(FeedbackRefused())
            await write_error(send, error, tabby.TABBY.error(status_of(error), error))

    async def check_reader(self, scope: AsgiScope) -> None:
        """Check that the caller may read what is told of the server, which everybody may while authentication is off.

        Raises:
            CompletionError: as `Callers.identify`.

        """
        if not self._callers.is_open:
            await identify(self._callers, headers_of(scope), scope)

    async def discard_body(self, receive: Receive) -> None:
        """Receive the body of a request that is refused; see `receiving.discard_body`."""
        await discard_body(receive, self._max_body_bytes, self._receive_timeout_s)

    def _report(self, event: tabby.Event, caller: Caller, headers: Mapping[str, str]) -> None:
        recent = self._recent.find(event.number)
        caller, _has_name = self._caller_of(caller, headers, recent.user if recent else "")  # events have no `user`
        if recent is None or recent.owner != caller.owner:
            raise InvalidRequestError("completion_id", "must be that of one of the last completions of its user")
        caller = with_document(caller, recent.document)
        self._service.charge(caller)
        self._service.report_feedback(caller, event.number, event.feedback(recent.text))

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
        return await receive_body(receive, headers, self._max_body_bytes, self._receive_timeout_s)

    def _open(
        self, asked: Asked, caller: Caller, headers: Mapping[str, str], began_at: float
    ) -> tuple[Completion | None, Recent]:
        """Open a request; None for one that wants no text, which is checked and charged."""
        caller, has_name = self._caller_of(caller, headers, asked.user)
        now = self._service.now()
        recent = self._recent.place(caller.owner, asked, next_number(), now, has_name=has_name)
        trace = self._begin_trace(headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, ""))
        request = request_of(asked, caller, recent, self._limits, began_at=began_at, now=now, trace=trace)
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
