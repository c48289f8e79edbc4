"""One Session stream: reads an editor's messages, opens its requests, and ends at its time limits."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from completion.v1 import completion_pb2 as pb
from completion_server.api.callers import CHECK_EVERY_S, CredentialWatch
from completion_server.api.rpc import convert
from completion_server.api.rpc.decoder import MalformedError
from completion_server.api.rpc.intake import Intake, identify
from completion_server.api.rpc.outbox import Outbox, Writer
from completion_server.core.credential import Scope
from completion_server.core.errors import (
    CompletionError,
    DrainingError,
    InvalidRequestError,
    Limit,
    OverloadedError,
    PermissionDeniedError,
    SessionEndedError,
)
from completion_server.core.events import FeedbackRefused, RequestRefused
from completion_server.core.outcome import End, FinishReason, Outcome, ShedReason
from completion_server.core.request import Caller
from completion_server.requests.completion import Completion
from completion_server.requests.service import Service

logger = logging.getLogger(__name__)

CLIENT_GONE = grpc.aio.BaseError
"""Raised by a write whose client has left, if the cancellation of the call has not come first."""

_ANSWERS_PER_REQUEST = 4
"""Unwritten answers for each request that may be live; while there are more, the stream is not read. Most of them are
Ends of superseded requests, so a client that types faster than it reads still gets its newest request served."""


def reset(seconds: float) -> NoReturn:
    """End the call of a stalled reader without a status, because a status would wait behind the unread messages.

    Raises CancelledError: always; gRPC resets a call whose handler is cancelled.
    """
    logger.info("a reader stalled for %g s; its call is reset", seconds)
    raise asyncio.CancelledError


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The time limits of a stream, in seconds."""

    first_request_s: float
    """From its start to its first message."""
    idle_s: float
    """From one message to the next, without open requests."""
    max_age_s: float
    stall_timeout_s: float
    """How long a write may block."""


class SessionCall:
    """The server's side of one stream. An invalid request ends that request; a stalled reader ends the stream."""

    def __init__(
        self,
        service: Service,
        intake: Intake,
        times: StreamTimes,
        context: "grpc.aio.ServicerContext[Any, Any]",
        caller: Caller,
    ) -> None:
        """Serve the call of `context`, whose caller is `caller`."""
        self._service = service
        self._intake = intake
        self._times = times
        self._context = context
        self._watch = CredentialWatch(intake.callers, caller)
        """Its caller has a session id after the first request, which gives it."""
        self._last_sequence = 0
        """The highest sequence number of a request so far, accepted or not. It has an End, or gets one."""
        max_answers = _ANSWERS_PER_REQUEST * intake.limits.max_requests_per_session
        self._outbox = Outbox(Writer(context, times.stall_timeout_s), max_answers, convert.session_response_of)
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._received_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failure: CompletionError | None = None
        """The failure with which the stream ends after its answers are written."""

    @property
    def caller(self) -> Caller:
        """The caller, with the credential that it has shown last."""
        return self._watch.caller

    async def run(self) -> CompletionError | None:
        """Serve the stream to its end; return the failure that the call must end with, if any."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outbox.run())
                self._reading = group.create_task(self._read_all())
                self._reading.add_done_callback(lambda _reading: self._outbox.complete())  # also if it never started
                if self._failure is not None:
                    self._reading.cancel()
                self._check_ends()
        except BaseExceptionGroup as failures:
            if failures.subgroup(TimeoutError):
                reset(self._times.stall_timeout_s)
            if failures.split(CLIENT_GONE)[1] is not None:
                raise
            return None
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for completion in self._outbox.completions.values():
                completion.leave()
        return self._failure

    def close(self) -> None:
        """Stop reading, and end the stream with UNAVAILABLE after its answers are written."""
        self._end(DrainingError("the server is shutting down", retry_after_ms=0))

    def _end(self, failure: CompletionError) -> None:
        """Stop reading, and end the stream with a failure after its answers are written."""
        if self._failure is None:
            self._failure = failure
            if self._reading is not None:
                self._reading.cancel()

    def _cut(self, failure: CompletionError) -> None:
        """End the stream of a caller that may not go on, and its open requests with it."""
        self._end(failure)
        for completion in tuple(self._outbox.completions.values()):
            completion.cancel()

    def _check_ends(self) -> None:
        """End the stream if a time limit is reached or its caller may not go on, else set a timer to check again."""
        now, times = self._loop.time(), self._times
        try:
            self._watch.check(now)
        except CompletionError as error:
            self._cut(error)
            return
        ends = [(self._opened_at + times.max_age_s, f"it is {times.max_age_s:.3g} s old")]
        if self._received_at is None:
            reason = f"no request came within {times.first_request_s:g} s"
            ends.append((self._opened_at + times.first_request_s, reason))
        elif not self._outbox.num_live:
            reason = f"no message for {times.idle_s:g} s"
            ends.append((self._received_at + times.idle_s, reason))
        ends_at, reason = min(ends)
        if ends_at <= now:
            self._end(SessionEndedError(f"the stream ends: {reason}", retry_after_ms=0))
            return
        # Messages and answers change the end meanwhile, so check again after one idle time at the latest.
        soon_s = times.idle_s if self.caller.credential is None else min(times.idle_s, CHECK_EVERY_S)
        self._timer = self._loop.call_at(min(ends_at, now + soon_s), self._check_ends)

    async def _read_all(self) -> None:
        while self._failure is None and (data := await self._context.read()) is not grpc.aio.EOF:
            if self._received_at is not None:
                self._received_at = self._loop.time()
            await self._take(data)

    async def _take(self, data: bytes) -> None:
        began_at = self._service.now()
        try:
            message = self._intake.decode_session(data)
        except MalformedError as error:
            await self._refuse_malformed(error)
            return
        if not await self._may_go_on(message.authorization):
            return
        match message.WhichOneof("event"):
            case "complete":
                await self._complete(message.complete, began_at)
            case "cancel":
                completion = self._outbox.completions.get(message.cancel.sequence)
                if completion is not None:
                    completion.cancel()
            case "feedback":
                await self._report(message.feedback)
            case None if message.HasField("authorization"):
                pass
            case _:
                await self._outbox.reserve()
                self._refuse(0, InvalidRequestError("event", "must be set"))

    async def _may_go_on(self, authorization: str) -> bool:
        """Take a new token, if there is one; return whether the stream goes on, and end it if not."""
        try:
            if authorization and self.caller.credential is not None:
                again = await identify(self._intake.callers, self._context, authorization=authorization)
                self._watch.renew(again)
            self._watch.check(self._loop.time())
        except CompletionError as error:
            self._cut(error)
            return False
        return True

    async def _complete(self, message: pb.CompleteRequest, began_at: float) -> None:
        parsed_at, sequence = self._service.now(), message.sequence
        await self._outbox.reserve()
        began_at += self._service.now() - parsed_at  # the stage is receiving, not the wait for a slow reader
        if not self._is_new(sequence):
            limit = f"must rise within a session: after {self._last_sequence} came {sequence}"
            self._refuse(sequence, InvalidRequestError("complete.sequence", limit))
            return
        try:
            completion = self._open_completion(message, began_at)
        except CompletionError as error:
            self._end_refused(sequence, error)
            return
        self._received_at = self._loop.time()
        self._outbox.add(sequence, completion)

    def _is_new(self, sequence: int) -> bool:
        """Take the sequence number of a request; return whether it has risen, so that the request gets an End."""
        is_new = sequence > self._last_sequence
        self._last_sequence = max(self._last_sequence, sequence)
        return is_new

    def _open_completion(self, message: pb.CompleteRequest, began_at: float) -> Completion:
        caller = self._caller_of(message)
        num_live, max_live = self._outbox.num_live, self._intake.limits.max_requests_per_session
        if num_live >= max_live:
            limit = Limit("limits.max_requests_per_session", max_live)
            raise OverloadedError(f"{num_live} requests of this stream are live ({limit.name})", limit=limit)
        # Not the stream's own metadata: it would make one trace of half an hour's requests.
        return self._service.open(self._intake.request_of(message, caller, began_at))

    def _caller_of(self, message: pb.CompleteRequest | pb.ReportFeedbackRequest) -> Caller:
        if not self.caller.session:
            self._watch.caller = self.caller.on_stream(convert.session_id_of(message, self._intake.limits))
        elif message.session_id not in ("", self.caller.session):
            raise InvalidRequestError("session_id", "must be the same on all requests of a stream, or empty")
        return self.caller

    async def _report(self, message: pb.ReportFeedbackRequest) -> None:
        """Take feedback. Only a report that is refused has an answer."""
        try:
            self.caller.require(Scope.FEEDBACK)
            feedback = convert.feedback_of(message)
            self._service.report_feedback(self._caller_of(message), message.sequence, feedback)
        except (InvalidRequestError, PermissionDeniedError) as error:
            await self._outbox.reserve()
            refused = _renamed(error, added="feedback.") if isinstance(error, InvalidRequestError) else error
            self._refuse(message.sequence, refused, FeedbackRefused())

    async def _refuse_malformed(self, error: MalformedError) -> None:
        await self._outbox.reserve()
        if self._is_new(error.sequence):
            self._end_refused(error.sequence, _renamed(error, removed="complete."))
        else:
            self._refuse(error.sequence, error)

    def _refuse(self, sequence: int, error: CompletionError, event: FeedbackRefused | None = None) -> None:
        """Refuse a message that begins no request. Needs a reserved place."""
        self._service.emit(event or RequestRefused(error))
        self._outbox.write_nowait(convert.refusal_of(sequence, error))

    def _end_refused(self, sequence: int, error: CompletionError) -> None:
        """End a new request that is not accepted. Needs a reserved place."""
        self._service.emit(RequestRefused(error))
        outcome = Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        if isinstance(error, DrainingError):
            outcome = Outcome(FinishReason.SHED, ShedReason.DRAINING, error.retry_after_ms)
        self._outbox.write_nowait(convert.session_response_of(sequence, End(outcome)))


def _renamed(error: InvalidRequestError, *, removed: str = "", added: str = "") -> InvalidRequestError:
    """Return an error whose field has the path in the message around, or inside, that of the error."""
    (violation,) = error.violations
    return InvalidRequestError(added + violation.field.removeprefix(removed), violation.description)
