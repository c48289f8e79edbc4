"""One `Session` stream to one server until it ends, with callbacks and without waiting.

An end is quiet if it fails nothing: the server ends the stream as SESSION_ENDED; or it refuses the token or a write
fails, and no request has text or was sent again before. legs.py opens another stream then, for the requests without an
answer or for the next one. Any other end is a loss. A GOAWAY needs no case of its own: gRPC opens the next stream on a
new connection, and the end of the old stream is one of the ends above.

A write that fails hides the server's status from gRPC's caller: the server may have ended the stream in good order just
then. The requests are sent again. A server that has not noticed yet that the old connection is lost answers the newest
of them as superseded, by itself: that is a loss, too.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.connections import Connection
from completion_client.endpoint import Endpoint, Metadata, with_token
from completion_client.errors import (
    SESSION_ENDED,
    ConnectionLostError,
    FailedWriteError,
    PermissionDeniedError,
    ServiceError,
    UnauthenticatedError,
    error_of_call,
    error_of_message,
)
from completion_client.open_request import OpenRequest
from completion_client.replicas import Replicas
from completion_client.session_settings import SessionSettings
from completion_client.silence import SilenceError, SilenceGuard

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub
    from completion_client.legs import Legs

    Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


_log = logging.getLogger(__name__)

_ACCEPTED_AFTER_S = 60.0
"""A token that is refused on a stream of this age was accepted before: it has expired or was revoked."""


class SessionStream:
    """Sends the requests of one session to one server and passes the answers on: the leg of a session.

    `legs` learn of its loss, their owner of its server's silence.
    """

    def __init__(
        self,
        legs: "Legs",
        replicas: Replicas,
        connection: Connection,
        metadata: Metadata,
        settings: SessionSettings,
        lost_at_s: float | None,
    ) -> None:
        """Open the stream; `lost_at_s` is the loop's time at which the stream was lost that this one replaces.

        If the token is not at hand, as when its command runs, the stream opens when it is.
        """
        self.connection = connection
        self.was_connected = connection.is_ready
        """Whether there was a connection when the stream was opened."""
        self.may_retry = False
        """Whether the requests of this stream, which has ended, may be sent to another server."""
        self.is_quiet = False
        """Whether it ended without a loss: they may be sent to the same server, too."""
        self.last_sequence = 0
        self._legs = legs
        self._owner = legs.owner
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._metadata = metadata
        self._token = replicas.token(connection.endpoint)
        self._presented = ""
        """The token with which the stream was opened."""
        self._opened_at_s = 0.0
        self._read_interval_s = settings.read_interval_s
        self._lost_at_s = lost_at_s
        """When the stream before was lost, until the server answers on this one."""
        self._requests: dict[int, OpenRequest] = {}
        self._guard = SilenceGuard(partial(replicas.regions.alive_at_s, connection), self._on_silent, self._give_up)
        self._has_logged_refusal = False
        self._has_ended = self._is_closing = False
        self._outgoing: deque[pb.SessionRequest] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._call: Call | None = None
        """None while there is no token."""
        presented = self._token.at_hand()
        if presented is not None:
            self._open(presented)
        self._runner: asyncio.Task[None] | None = asyncio.create_task(self._run())

    @property
    def endpoint(self) -> Endpoint:
        """The server."""
        return self.connection.endpoint

    @property
    def is_open(self) -> bool:
        """Whether messages go to the server."""
        return self._call is not None and not self._has_ended

    @property
    def is_silent(self) -> bool:
        """Whether the server sends nothing, though something is due."""
        return self._guard.is_silent

    @property
    def is_outdated(self) -> bool:
        """Whether there is another token by now: the server ends the stream when the one that it has expires."""
        return self.is_open and self._token.at_hand() not in (None, self._presented)

    @property
    def num_open(self) -> int:
        """Requests that have neither ended nor failed."""
        return len(self._requests)

    def send_nowait(self, request: OpenRequest, silence_s: float | None) -> None:
        """Send a request whose sequence number is higher than those before it.

        The server may send nothing for `silence_s`, or for ever. Raises ConnectionLostError if the stream has ended.
        """
        if self._has_ended:
            msg = "not connected"
            raise ConnectionLostError(msg)
        self.last_sequence = request.message.sequence
        request.note_sent(self._loop.time())
        request.leg = self
        self._requests[self.last_sequence] = request
        self._post(pb.SessionRequest(complete=request.message))
        if silence_s is not None:
            self._guard.expect_nowait(silence_s)

    def cancel_nowait(self, sequence: int) -> None:
        """Cancel a request; it ends as the server says. Ignored if it is not open."""
        if request := self._requests.get(sequence):
            request.is_cancelled = True
            self._post(pb.SessionRequest(cancel=pb.Cancel(sequence=sequence)))

    def discard_nowait(self, sequence: int) -> None:
        """Cancel a request of which nothing more is to be heard from here. Ignored if it is not open."""
        if self._requests.pop(sequence, None):
            self._post(pb.SessionRequest(cancel=pb.Cancel(sequence=sequence)))
        self._note_answer()

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        """Send feedback on a completion. It is dropped unless the stream is open."""
        if self.is_open:
            self._post(pb.SessionRequest(feedback=feedback))

    def drop_nowait(self, error: ServiceError) -> None:
        """Lose the stream with an error, unless it has ended. The owner closes it; open requests get the error then."""
        if self._has_ended:
            return
        self._has_ended = True
        self._legs.leg_ended(self, error)
        requests, self._requests = self._requests, {}
        for each in requests.values():
            self._owner.request_failed(each, error)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; return the tasks that end with it, for the caller to await.

        The listeners of open requests get no further event.
        """
        self._is_closing = True
        self._guard.stop_nowait()
        tasks = [task for task in (self._runner, self._writer) if task is not None]
        for task in tasks:
            task.cancel()
        if self._call is not None:
            self._call.cancel()
        # A cancelled task keeps the frames of its coroutine, which refer to this stream and to the call. Without the
        # cycle the call goes with its task, and a channel that was dropped closes with its last call.
        self._call = self._runner = self._writer = None
        return tasks

    def _post(self, message: pb.SessionRequest) -> None:
        """Queue a message for the writer, so that no caller waits for a server that does not read."""
        self._outgoing.append(message)
        self._write()

    def _write(self) -> None:
        if self._call is not None and self._outgoing and (self._writer is None or self._writer.done()):
            self._writer = asyncio.create_task(_write_all(self._call, self._outgoing))

    async def _run(self) -> None:
        try:
            if self._call is None:
                self._open(await self._token.get())
        except ServiceError as failure:
            self.drop_nowait(failure)
            return
        error = await self._read_until_end()
        is_refused = isinstance(error, UnauthenticatedError | PermissionDeniedError)
        if is_refused:
            if self._loop.time() - self._opened_at_s > _ACCEPTED_AFTER_S:
                self._token.accepted(self._presented)
            self._token.refused(self._presented, error)
        may_repeat = not any(each.has_text or each.is_sent_again for each in self._requests.values())
        is_repeated = may_repeat and (is_refused or isinstance(error, FailedWriteError))
        self.is_quiet = is_repeated or error.reason == SESSION_ENDED
        self.drop_nowait(error if self.is_quiet else self._token.refusal(error))

    def _open(self, token: str) -> None:
        stub: CompletionServiceAsyncStub = CompletionServiceStub(self.connection.channel)
        self._call = stub.Session(metadata=with_token(self._metadata, token))
        self._presented, self._opened_at_s = token, self._loop.time()
        self._write()

    async def _read_until_end(self) -> ServiceError:
        """Pass answers on until the stream ends; return the reason of its end."""
        call = self._call
        if call is None:
            return ConnectionLostError("the connection was dropped")
        try:
            await call.initial_metadata()
            self._note_accepted(call)
            while isinstance(response := await call.read(), pb.SessionResponse):
                self._dispatch(response)
                if self._read_interval_s:
                    await asyncio.sleep(self._read_interval_s)
        except grpc.aio.AioRpcError as error:
            return error_of_call(error)
        except asyncio.CancelledError:
            # gRPC raises it for a cancelled call, too. Only the cancellation of this task is passed on.
            if self._is_closing or not call.cancelled():
                raise
            return ConnectionLostError("the connection was dropped")
        return ConnectionLostError("the stream ended")

    def _note_accepted(self, call: "Call") -> None:
        """Report a stream in place of a lost one once the server has accepted it or sent its first answer."""
        if self._lost_at_s is not None and not call.done():
            away_s = self._loop.time() - self._lost_at_s
            self._lost_at_s = None
            self._heard()
            self._legs.leg_accepted(self, away_s)

    def _dispatch(self, response: pb.SessionResponse) -> None:
        self._heard()
        self._token.accepted(self._presented)
        if response.HasField("refusal"):  # it ends no request: feedback that came too late, for example
            error = error_of_message(response.refusal.error)
            level = logging.DEBUG if self._has_logged_refusal else logging.WARNING
            _log.log(level, "the server refused a message of the session, sequence %d: %s", response.sequence, error)
            self._has_logged_refusal = True
            return
        request = self._requests.get(response.sequence)
        if request is None:
            return
        if response.HasField("end"):
            del self._requests[response.sequence]
            self._note_answer()
            is_superseded = response.end.finish_reason == pb.FINISH_REASON_SUPERSEDED
            if is_superseded and request.is_sent_again and response.sequence == self.last_sequence:
                error = ConnectionLostError("the server still had the request of a lost connection")
                self._owner.request_failed(request, error)
            else:
                self._owner.request_ended(request, response.end)
        elif response.HasField("delta"):
            request.has_text = True
            request.listener.on_text(response.delta.text)

    def _heard(self) -> None:
        self._guard.heard_nowait()
        self.connection.heard_at_s = self._loop.time()

    def _note_answer(self) -> None:
        """Expect nothing more if no request is open."""
        if not self._requests:
            self._guard.stop_nowait()

    def _on_silent(self) -> float | None:
        self._replicas.pass_over(self.endpoint, "it sends nothing")
        return self._owner.leg_silent(self)

    def _give_up(self, silence_s: float) -> None:
        self.drop_nowait(SilenceError.of(self.endpoint.address, silence_s))


async def _write_all(call: "Call", outgoing: deque[pb.SessionRequest]) -> None:
    try:
        while outgoing:
            await call.write(outgoing.popleft())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the reader gets the reason
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
