"""CompletionService: answers single calls and session streams."""

import asyncio
import random
from typing import Any

from completion.v1 import completion_pb2 as pb
from completion_server.api.callers import Callers
from completion_server.api.rpc import convert
from completion_server.api.rpc.intake import Intake, identify
from completion_server.api.rpc.outbox import Writer
from completion_server.api.rpc.session import CLIENT_GONE, SessionCall, StreamTimes, reset
from completion_server.api.rpc.status import abort, abort_within
from completion_server.core.credential import Scope
from completion_server.core.errors import CompletionError, DeadlineError, ShedError
from completion_server.core.events import RequestRefused, SessionClosed, SessionOpened
from completion_server.core.outcome import AnswerPart, End, FinishReason, Outcome
from completion_server.core.request import Caller
from completion_server.core.trace_context import BeginTrace, no_trace
from completion_server.requests.completion import Completion
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings, ServerSettings
from completion_server.requests.service import Service

Context = Any

_AGE_JITTER = 0.1
_DEADLINE_SLACK_S = 0.01
"""gRPC cancels a call at its deadline, so a cancellation this close to the deadline counts as the deadline."""


class CompletionServicer:
    """Implements CompletionService. Each method reads the raw bytes of its messages from the context."""

    def __init__(
        self,
        service: Service,
        callers: Callers,
        server: ServerSettings,
        limits: LimitSettings,
        admission: AdmissionSettings,
        *,
        sheds_as_status: bool = False,
        begin_trace: BeginTrace = no_trace,
    ) -> None:
        """Answer the callers that `callers` identifies through `service`.

        With `sheds_as_status` a shed call fails instead of ending with empty text.
        """
        self._service = service
        self._server = server
        self._admission = admission
        self._stall_timeout_s = server.stall_timeout_s
        self._sheds_as_status = sheds_as_status
        self._intake = Intake(limits, callers, server.receive_timeout_s, service.now, begin_trace)
        self._sessions: set[SessionCall] = set()

    async def complete(self, _messages: Any, context: Context) -> None:
        """Answer one request."""
        try:
            completion, caller = await self._open(context)
        except CompletionError as error:
            self._service.emit(RequestRefused(error))
            await abort(context, error)
        with self._intake.callers.watching(caller, completion.cancel):
            failure = await self._stream(completion, context)
        if failure is not None:
            await abort_within(context, failure, self._stall_timeout_s)

    async def _open(self, context: Context) -> tuple[Completion, Caller]:
        """Receive the request of a call and open it; return it with its caller."""
        began_at = self._service.now()
        caller = await identify(self._intake.callers, context)
        self._service.gate.check()
        message = self._intake.decode_complete(await self._intake.receive(context))
        caller = caller.in_session(convert.session_id_of(message, self._intake.limits))
        return self._service.open(self._intake.request_of(message, caller, began_at, context)), caller

    async def _stream(self, completion: Completion, context: Context) -> CompletionError | None:
        """Write an answer; return the failure that the call must end with, if any."""
        writer, has_part, part = Writer(context, self._stall_timeout_s), asyncio.Event(), None
        completion.listen(has_part.set)
        try:
            while not isinstance(part, End):
                part = completion.take_nowait()
                if part is None:
                    has_part.clear()
                    await has_part.wait()
                else:
                    await writer.write(self._message_of(part))
            completion.note_end_written()
        except ShedError as error:
            return error
        except TimeoutError:
            reset(self._stall_timeout_s)
        except CLIENT_GONE:
            return None
        finally:
            slack = self._service.now() + _DEADLINE_SLACK_S
            is_late = completion.request.deadline.is_past(slack)
            completion.leave(Outcome(FinishReason.DEADLINE if is_late else FinishReason.CANCELLED))
        assert completion.outcome is not None
        if completion.outcome.reason is FinishReason.DEADLINE:
            return DeadlineError("the deadline passed first")
        return completion.outcome.error

    def _message_of(self, event: AnswerPart) -> pb.CompleteResponse:
        """Return the message of an event. Raises ShedError for a shed request, if that is a status."""
        if self._sheds_as_status and isinstance(event, End) and (reason := event.outcome.shed_reason):
            raise ShedError(reason.value, event.outcome.retry_after_ms, event.outcome.limit)
        return convert.response_of(event)

    async def session(self, _messages: Any, context: Context) -> None:
        """Serve one session stream."""
        try:
            caller = await identify(self._intake.callers, context)
            permit = self._service.gate.enter_session(caller)
        except CompletionError as error:
            self._service.emit(RequestRefused(error))
            await abort(context, error)
        # A jitter keeps streams that were opened together from ending together.
        max_age_s = self._server.max_session_age_s * random.uniform(1 - _AGE_JITTER, 1)
        admission = self._admission
        times = StreamTimes(admission.first_request_s, admission.session_idle_s, max_age_s, self._stall_timeout_s)
        with permit:
            stream = SessionCall(self._service, self._intake, times, context, caller)
            self._sessions.add(stream)
            opened_at = self._service.now()
            self._service.emit(SessionOpened(caller))
            try:
                await context.send_initial_metadata(())  # tells an editor that its reconnect succeeded
                failure = await stream.run()
            except CLIENT_GONE:
                return
            finally:
                self._sessions.discard(stream)
                self._service.emit(SessionClosed(stream.caller, self._service.now() - opened_at))
        if failure is not None:
            await abort_within(context, failure, self._stall_timeout_s)

    async def report_feedback(self, _messages: Any, context: Context) -> None:
        """Take an editor's feedback on a completion."""
        try:
            caller = await identify(self._intake.callers, context, Scope.FEEDBACK)
            message = self._intake.decode_feedback(await self._intake.receive(context))
            caller = caller.in_session(convert.session_id_of(message, self._intake.limits))
            self._service.report_feedback(caller, message.sequence, convert.feedback_of(message))
        except CompletionError as error:
            await abort(context, error)
        await context.write(pb.ReportFeedbackResponse())

    def close_sessions(self) -> None:
        """End every session stream with UNAVAILABLE, so that editors connect to another server."""
        for stream in list(self._sessions):
            stream.close()
