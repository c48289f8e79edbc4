"""One Session stream: reads an editor's messages, and writes the answers of all its requests, one event at a time."""

import asyncio
import logging
from typing import Any, NoReturn

import grpc

from completion.v1 import completion_pb2 as pb
from completion_server.admission.gate import Readiness
from completion_server.completion import Completion
from completion_server.core.errors import CompletionError, InvalidRequestError, UnavailableError
from completion_server.core.outcome import End, Event, FinishReason, Outcome, ShedReason
from completion_server.core.request import Caller
from completion_server.pipeline import Pipeline
from completion_server.rpc import convert
from completion_server.rpc.settings import LimitSettings
from completion_server.rpc.wire import Malformed

logger = logging.getLogger(__name__)

CLIENT_GONE = grpc.aio.BaseError
"""What a write raises whose client has left; a cancel does not always come first."""


def reset(seconds: float) -> NoReturn:
    """End the call of a reader that takes nothing, without a status: that would wait behind what is not taken.

    Raises:
        CancelledError: always; gRPC resets a call whose handler is cancelled.

    """
    logger.info("a reader took nothing for %g s and was ended", seconds)
    raise asyncio.CancelledError


class SessionStream:
    """The server's side of one stream. A bad request ends that request; a bad reader ends the stream."""

    def __init__(
        self,
        pipeline: Pipeline,
        limits: LimitSettings,
        stall_timeout_s: float,
        context: "grpc.aio.ServicerContext[Any, Any]",
        user: str,
        tenant: str,
    ) -> None:
        """Belong to the call of `context`; `user` is "" where the connection names none."""
        self._pipeline = pipeline
        self._limits = limits
        self._stall_timeout_s = stall_timeout_s
        self._context = context
        self._user = user
        self._tenant = tenant
        self._session_id = ""
        self._last_sequence = -1
        self._completions: dict[int, Completion] = {}
        self._writing = asyncio.Lock()
        self._places = asyncio.Semaphore(limits.max_requests_per_session)
        self._reading: asyncio.Task[None] | None = None
        self._is_closing = False

    async def run(self) -> CompletionError | None:
        """Serve the stream to its end; return the failure that the call must end with, if any."""
        try:
            async with asyncio.TaskGroup() as answers:
                self._reading = answers.create_task(self._read(answers))
        except BaseExceptionGroup as group:
            if group.subgroup(TimeoutError):
                reset(self._stall_timeout_s)
            if group.subgroup(lambda error: not isinstance(error, CLIENT_GONE)):
                raise
            return None
        if self._is_closing:
            return UnavailableError("the server is shutting down", retry_after_ms=0)
        return None

    def close(self) -> None:
        """Read no more; when the answers are written, the stream ends with UNAVAILABLE."""
        self._is_closing = True
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, answers: asyncio.TaskGroup) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            if isinstance(message, Malformed):
                await self._refuse(message.sequence, message.error)
                continue
            match message.WhichOneof("event"):
                case "complete":
                    await self._places.acquire()
                    await self._complete(message.complete, answers)
                case "cancel":
                    completion = self._completions.get(message.cancel.sequence)
                    if completion is not None:
                        completion.close()
                case "feedback":
                    self._report(message.feedback)
                case _:
                    await self._refuse(0, InvalidRequestError("event", "must be set"))

    async def _complete(self, message: pb.CompleteRequest, answers: asyncio.TaskGroup) -> None:
        try:
            completion = self._open(message)
        except CompletionError as error:
            self._places.release()
            await self._refuse(message.sequence, error)
            return
        self._completions[message.sequence] = completion
        answers.create_task(self._answer(message.sequence, completion))

    def _open(self, message: pb.CompleteRequest) -> Completion:
        self._check_session(message)
        if message.sequence <= self._last_sequence:
            limit = f"must rise within a session: after {self._last_sequence} came {message.sequence}"
            raise InvalidRequestError("sequence", limit)
        caller = Caller(self._user, self._session_id, self._tenant)
        request = convert.request_of(message, caller, self._limits, None, self._pipeline.clock.now())
        self._last_sequence = message.sequence
        return self._pipeline.open(request)

    def _check_session(self, message: pb.CompleteRequest) -> None:
        if self._session_id and message.session_id in ("", self._session_id):
            return
        session_id = convert.session_id_of(message, self._limits)
        if self._session_id:
            raise InvalidRequestError("session_id", "must be the same on all requests of a stream, or empty")
        self._session_id = session_id

    def _report(self, message: pb.ReportFeedbackRequest) -> None:
        """Take feedback in. It has no answer, so what is wrong with it can only be left out."""
        try:
            self._pipeline.observer.feedback_reported(convert.feedback_of(message))
        except InvalidRequestError:
            self._pipeline.observer.feedback_refused()

    async def _answer(self, sequence: int, completion: Completion) -> None:
        try:
            async for event in completion.events():
                await self._write(sequence, event, completion)
        finally:
            completion.close()
            self._completions.pop(sequence, None)
            self._places.release()

    async def _refuse(self, sequence: int, error: CompletionError) -> None:
        """End a request that was not taken in."""
        self._pipeline.observer.request_refused(error.code)
        outcome = Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        if self._pipeline.gate.readiness is Readiness.DRAINING and isinstance(error, UnavailableError):
            outcome = Outcome(FinishReason.SHED, ShedReason.DRAINING, error.retry_after_ms)
        twin = self._completions.get(sequence)
        if twin is not None:  # a number may have one end only, so it is this that the request in flight gets
            twin.close(outcome)
            return
        await self._write(sequence, End(outcome))

    async def _write(self, sequence: int, event: Event, completion: Completion | None = None) -> None:
        """Write, one at a time; meanwhile the events of the other requests are merged in their mailboxes.

        Text that waited for its turn is dropped where a newer request came meanwhile.

        Raises:
            TimeoutError: the reader stalls.

        """
        async with self._writing, asyncio.timeout(self._stall_timeout_s):
            if completion is None or not completion.is_superseded or isinstance(event, End):
                await self._context.write(convert.session_response_of(sequence, event))
