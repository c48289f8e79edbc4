"""One Session stream: reads an editor's messages, and writes the answers of all its requests, one event at a time."""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
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
from completion_server.rpc.identity import Identity
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


@dataclass(slots=True)
class _Answer:
    """What is written under one sequence number: what a completion has to say, or why there is none."""

    sequence: int
    completion: Completion | None = None
    refusal: End | None = None
    is_ready: bool = False
    """Whether it stands in the row of those that have something to write."""

    def take(self) -> Event | None:
        """Return what is to be written now."""
        return self.refusal if self.completion is None else self.completion.take_nowait()


class SessionStream:
    """The server's side of one stream. A bad request ends that request; a bad reader ends the stream."""

    def __init__(
        self,
        pipeline: Pipeline,
        limits: LimitSettings,
        stall_timeout_s: float,
        context: "grpc.aio.ServicerContext[Any, Any]",
        identity: Identity,
    ) -> None:
        """Belong to the call of `context`, whose caller is `identity`."""
        self._pipeline = pipeline
        self._limits = limits
        self._stall_timeout_s = stall_timeout_s
        self._context = context
        self._identity = identity
        self._caller: Caller | None = None
        """Known from the first request on, which names the session."""
        self._last_sequence = -1
        self._open: dict[int, _Answer] = {}
        self._ready: deque[_Answer] = deque()
        self._news: asyncio.Future[None] | None = None
        self._places = asyncio.Semaphore(limits.max_requests_per_session)
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_read = False
        self._has_stalled = False
        self._is_closing = False

    async def run(self) -> CompletionError | None:
        """Serve the stream to its end; return the failure that the call must end with, if any."""
        try:
            async with asyncio.TaskGroup() as group:
                self._writing = group.create_task(self._write_all())
                self._reading = group.create_task(self._read_all())
                self._reading.add_done_callback(self._have_read)  # also where it never began
                if self._is_closing:
                    self._reading.cancel()
        except BaseExceptionGroup as failures:
            if failures.subgroup(TimeoutError):
                reset(self._stall_timeout_s)
            if failures.subgroup(lambda error: not isinstance(error, CLIENT_GONE)):
                raise
            return None
        finally:
            for answer in self._open.values():
                if answer.completion is not None:
                    answer.completion.close()
                    answer.completion.ignore()
        if self._is_closing:
            return UnavailableError("the server is shutting down", retry_after_ms=0)
        return None

    def close(self) -> None:
        """Read no more; when the answers are written, the stream ends with UNAVAILABLE."""
        self._is_closing = True
        if self._reading is not None:
            self._reading.cancel()

    # What comes in

    async def _read_all(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            await self._take(message)

    def _have_read(self, _reading: "asyncio.Task[None]") -> None:
        self._is_read = True
        self._wake()

    async def _take(self, message: pb.SessionRequest | Malformed) -> None:
        if isinstance(message, Malformed):
            await self._refuse(message.sequence, message.error)
            return
        match message.WhichOneof("event"):
            case "complete":
                await self._places.acquire()
                await self._complete(message.complete)
            case "cancel":
                answer = self._open.get(message.cancel.sequence)
                if answer is not None and answer.completion is not None:
                    answer.completion.close()
            case "feedback":
                self._report(message.feedback)
            case _:
                await self._refuse(0, InvalidRequestError("event", "must be set"))

    async def _complete(self, message: pb.CompleteRequest) -> None:
        try:
            completion = self._open_completion(message)
        except CompletionError as error:
            self._places.release()
            await self._refuse(message.sequence, error)
            return
        answer = self._open[message.sequence] = _Answer(message.sequence, completion)
        completion.listen(partial(self._has_news, answer))

    def _open_completion(self, message: pb.CompleteRequest) -> Completion:
        caller = self._caller_of(message)
        if message.sequence <= self._last_sequence:
            limit = f"must rise within a session: after {self._last_sequence} came {message.sequence}"
            raise InvalidRequestError("sequence", limit)
        request = convert.request_of(message, caller, self._limits, None, self._pipeline.clock.now())
        self._last_sequence = message.sequence
        return self._pipeline.open(request)

    def _caller_of(self, message: pb.CompleteRequest) -> Caller:
        if self._caller is None:
            self._caller = self._identity.stream(convert.session_id_of(message, self._limits))
        elif message.session_id not in ("", self._caller.session):
            raise InvalidRequestError("session_id", "must be the same on all requests of a stream, or empty")
        return self._caller

    def _report(self, message: pb.ReportFeedbackRequest) -> None:
        """Take feedback in. It has no answer, so what is wrong with it can only be left out."""
        try:
            feedback = convert.feedback_of(message)
            if self._caller is None:
                raise InvalidRequestError("sequence", "nothing was asked on this stream yet")
            self._pipeline.report_feedback(self._caller, message.sequence, feedback)
        except InvalidRequestError:
            self._pipeline.observer.feedback_refused()

    async def _refuse(self, sequence: int, error: CompletionError) -> None:
        """End a request that was not taken in, once those before it leave room: an editor must not fill memory."""
        self._pipeline.observer.request_refused(error.code)
        outcome = Outcome(FinishReason.ERROR, error=error, retry_after_ms=error.retry_after_ms)
        if self._pipeline.gate.readiness is Readiness.DRAINING and isinstance(error, UnavailableError):
            outcome = Outcome(FinishReason.SHED, ShedReason.DRAINING, error.retry_after_ms)
        twin = self._open.get(sequence)
        if twin is not None and twin.completion is not None:
            twin.completion.close(outcome)  # a number may have one end only, so it is this that the one in flight gets
            return
        await self._places.acquire()
        self._has_news(_Answer(sequence, refusal=End(outcome)))

    # What goes out

    def _has_news(self, answer: _Answer) -> None:
        if not answer.is_ready:
            answer.is_ready = True
            self._ready.append(answer)
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _write_all(self) -> None:
        """Write, one event at a time; meanwhile what the other requests say is merged in their mailboxes.

        Raises:
            TimeoutError: the reader stalls.

        """
        while self._ready or not self._is_read or self._open:
            if not self._ready:
                self._news = self._loop.create_future()
                await self._news
                continue
            answer = self._ready.popleft()
            answer.is_ready = False
            event = answer.take()
            if event is None:
                continue
            await self._write(convert.session_response_of(answer.sequence, event))
            if isinstance(event, End):
                self._close(answer)

    def _close(self, answer: _Answer) -> None:
        self._places.release()
        if answer.completion is not None:
            del self._open[answer.sequence]
            answer.completion.note_streamed()

    async def _write(self, message: pb.SessionResponse) -> None:
        # Cheaper than asyncio.timeout, at some thousand messages a second.
        guard = self._loop.call_later(self._stall_timeout_s, self._stall)
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if self._has_stalled:
                raise TimeoutError from None
            raise
        finally:
            guard.cancel()

    def _stall(self) -> None:
        assert self._writing is not None
        self._has_stalled = True
        self._writing.cancel()
