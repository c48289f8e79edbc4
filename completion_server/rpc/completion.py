"""CompletionService: one call for each request, or one stream for an editor's whole life."""

import asyncio
from typing import Any

from completion.v1 import completion_pb2 as pb
from completion_server.completion import Completion
from completion_server.core.errors import CompletionError, ShedError
from completion_server.core.outcome import End, FinishReason, Outcome
from completion_server.core.request import Request
from completion_server.pipeline import Pipeline
from completion_server.rpc import convert
from completion_server.rpc.identity import Identity, identity_of
from completion_server.rpc.session import CLIENT_GONE, SessionStream, reset
from completion_server.rpc.settings import LimitSettings
from completion_server.rpc.status import DeadlineError, abort, abort_within
from completion_server.rpc.wire import Malformed

Context = Any

_DEADLINE_SLACK_S = 0.01
"""gRPC ends a call at its deadline too: a cancel this close to it is the deadline's."""


class CompletionServicer:
    """Answers editors."""

    def __init__(
        self, pipeline: Pipeline, limits: LimitSettings, stall_timeout_s: float, *, sheds_as_status: bool = False
    ) -> None:
        """Answer through `pipeline`; with `sheds_as_status` a shed call fails instead of ending empty."""
        self._pipeline = pipeline
        self._limits = limits
        self._stall_timeout_s = stall_timeout_s
        self._sheds_as_status = sheds_as_status
        self._sessions: set[SessionStream] = set()

    async def complete(self, message: pb.CompleteRequest | Malformed, context: Context) -> None:
        """One request, one stream."""
        try:
            request = self._request(message, context)
            completion = self._pipeline.open(request)
        except CompletionError as error:
            self._pipeline.observer.request_refused(error.code)
            await abort(context, error)
        failure = await self._stream(completion, context)
        if failure is not None:
            await abort_within(context, failure, self._stall_timeout_s)

    async def _stream(self, completion: Completion, context: Context) -> CompletionError | None:
        """Write an answer out; return the failure that the call must end with, if any."""
        outcome = Outcome(FinishReason.CANCELLED)
        try:
            async for event in completion.events():
                if self._sheds_as_status and isinstance(event, End) and event.outcome.shed_reason is not None:
                    return ShedError(event.outcome.shed_reason.value, event.outcome.retry_after_ms)
                async with asyncio.timeout(self._stall_timeout_s):
                    await context.write(convert.response_of(event))
                if isinstance(event, End):
                    outcome = event.outcome
        except TimeoutError:
            reset(self._stall_timeout_s)
        except CLIENT_GONE:
            return None
        finally:
            slack = self._pipeline.clock.now() + _DEADLINE_SLACK_S
            is_late = completion.request.deadline.is_past(slack)
            completion.close(Outcome(FinishReason.DEADLINE if is_late else FinishReason.CANCELLED))
        if outcome.reason is FinishReason.DEADLINE:
            return DeadlineError("the deadline passed first")
        return outcome.error

    async def session(self, _messages: Any, context: Context) -> None:
        """One stream for an editor's whole life. Messages are read from the context, one at a time."""
        try:
            identity = self._identify(context)
            permit = self._pipeline.gate.enter_session()
        except CompletionError as error:
            self._pipeline.observer.request_refused(error.code)
            await abort(context, error)
        with permit:
            stream = SessionStream(self._pipeline, self._limits, self._stall_timeout_s, context, identity)
            self._sessions.add(stream)
            try:
                await context.send_initial_metadata(())  # so that an editor that came back knows it
                failure = await stream.run()
            except CLIENT_GONE:
                return
            finally:
                self._sessions.discard(stream)
        if failure is not None:
            await abort_within(context, failure, self._stall_timeout_s)

    async def report_feedback(
        self, message: pb.ReportFeedbackRequest | Malformed, context: Context
    ) -> pb.ReportFeedbackResponse:
        """What became of a completion."""
        try:
            if isinstance(message, Malformed):
                raise message.error
            caller = self._identify(context).call(convert.session_id_of(message, self._limits))
            self._pipeline.report_feedback(caller, message.sequence, convert.feedback_of(message))
        except CompletionError as error:
            await abort(context, error)
        return pb.ReportFeedbackResponse()

    def close_sessions(self) -> None:
        """End every session stream with UNAVAILABLE, so that editors go to another server."""
        for stream in list(self._sessions):
            stream.close()

    def _request(self, message: pb.CompleteRequest | Malformed, context: Context) -> Request:
        if isinstance(message, Malformed):
            raise message.error
        session = convert.session_id_of(message, self._limits)
        caller = self._identify(context).call(session)
        now = self._pipeline.clock.now()
        return convert.request_of(message, caller, self._limits, context.time_remaining(), now)

    def _identify(self, context: Context) -> Identity:
        identity = identity_of(context, self._limits)
        self._pipeline.gate.check_user(identity.user)
        return identity
