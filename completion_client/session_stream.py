"""One `Session` stream to one server until it is lost, with callbacks and without waiting.

States of a stream:

    CONNECTED  -- the server ends it as SESSION_ENDED -->  RESTING
    CONNECTED  -- a write fails, the token is refused -->  RESTING (once for each request, and if none has text)
    CONNECTED  -- any other end, or drop_nowait -------->  LOST
    RESTING    -- a request is sent -------------------->  CONNECTED (requests without an answer are sent again)
    RESTING    -- a token is fetched in place of none or of a refused one -->  CONNECTED
    RESTING    -- no connection, no token, or drop_nowait -->  LOST

LOST is final; replicas/legs.py opens another stream. A loss fails all open requests, since their text would be stale on
another stream. A GOAWAY needs no state of its own: gRPC opens the next stream on a new connection, and the end of the
old stream is one of the ends above.

A write that fails hides the server's status from gRPC's caller: the server may have ended the stream in good order just
then. The requests are sent again. A server that has not noticed yet that the old connection is lost answers the newest
of them as superseded, by itself: that is a loss, too.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import Metadata, with_token
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
from completion_client.health import connects_within
from completion_client.regions.connections import Connection
from completion_client.request_fields import give_timeout
from completion_client.session_settings import RequestListener, SessionSettings
from completion_client.tokens import Token

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

    Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


_log = logging.getLogger(__name__)

_ACCEPTED_AFTER_S = 60.0
"""A token that is refused on a stream of this age was accepted before: it has expired or was revoked."""
_SEND_AGAIN_WITHIN_S = 1.0
"""How long requests wait for a connection after a failed write. Without one they fail, as after any other loss."""


class _State(Enum):
    CONNECTED = "connected"
    RESTING = "resting"
    LOST = "lost"


@dataclass(slots=True)
class _OpenRequest:
    """A request that has no answer yet."""

    message: pb.SessionRequest
    listener: RequestListener
    sent_at_s: float
    is_cancelled: bool = False
    has_text: bool = False
    is_sent_again: bool = False
    """Whether it was sent again after a failed write or with another token."""


class SessionStream(ABC):
    """Sends the requests of one session to one server and passes the answers to their listeners."""

    def __init__(
        self,
        connection: Connection,
        metadata: Metadata,
        token: Token,
        settings: SessionSettings,
        lost_at_s: float | None,
        connect_timeout_s: float,
    ) -> None:
        """Open the stream; `lost_at_s` is the loop's time at which the stream was lost that this one replaces.

        It begins at rest if the token is not at hand, as when its command runs, and opens with that.
        A stream that the server ends in good order opens again if it connects within `connect_timeout_s`.
        """
        self.connection = connection
        self.was_connected = connection.is_ready
        """Whether there was a connection when the stream was opened."""
        self.last_sequence = 0
        self._metadata = metadata
        self._token = token
        self._presented = ""
        """The token with which the stream was opened."""
        self._opened_at_s = 0.0
        self._read_interval_s = settings.read_interval_s
        self._lost_at_s = lost_at_s
        """When the stream before was lost, until the server answers on this one."""
        self._connect_timeout_s = connect_timeout_s
        self._requests: dict[int, _OpenRequest] = {}
        self._has_logged_refusal = False
        self._is_closing = False
        self._needs_stream = asyncio.Event()
        self._state = _State.RESTING
        self._outgoing: deque[pb.SessionRequest] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._call: Call | None = None
        channel, presented = connection.channel, token.at_hand()
        if presented is not None:
            self._open(channel, presented)
        self._runner: asyncio.Task[None] | None = asyncio.create_task(self._run())

    @abstractmethod
    def _on_lost(self, error: ServiceError, /) -> None:
        """Take the loss of the stream. Each of its requests fails next."""

    @abstractmethod
    def _on_accepted(self, away_s: float, /) -> None:
        """Take the first sign of the server on a stream that replaces a lost one, and the time since the loss."""

    def send_nowait(self, request: pb.CompleteRequest, listener: RequestListener) -> None:
        """Send a request whose sequence number is higher than those before it.

        Raises:
            ConnectionLostError: the stream is lost.

        """
        if self._state is _State.LOST:
            msg = "not connected"
            raise ConnectionLostError(msg)
        self.last_sequence = request.sequence
        message = pb.SessionRequest(complete=request)
        self._requests[request.sequence] = _OpenRequest(message, listener, asyncio.get_running_loop().time())
        self._post(message)

    @property
    def is_open(self) -> bool:
        """Whether messages go to the server: the stream neither rests nor is lost."""
        return self._state is _State.CONNECTED

    @property
    def is_outdated(self) -> bool:
        """Whether there is another token by now: the server ends the stream when the one that it has expires."""
        return self.is_open and self._token.at_hand() not in (None, self._presented)

    @property
    def num_open(self) -> int:
        """Requests that have neither ended nor failed."""
        return len(self._requests)

    def cancel_nowait(self, sequence: int) -> None:
        """Cancel a request; its listener gets the end that the server sends. Ignored if it is not open."""
        if request := self._requests.get(sequence):
            request.is_cancelled = True
            self._post(pb.SessionRequest(cancel=pb.Cancel(sequence=sequence)))

    def discard_nowait(self, sequence: int) -> None:
        """Cancel a request; its listener gets no further event. Ignored if it is not open."""
        self.cancel_nowait(sequence)
        self._requests.pop(sequence, None)

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        """Send feedback on a completion. It is dropped unless the stream is open."""
        if self.is_open:
            self._post(pb.SessionRequest(feedback=feedback))

    def drop_nowait(self, error: ServiceError) -> None:
        """Lose the stream with an error, unless it is lost. `_on_lost` closes it; open requests get the error then."""
        if self._state is _State.LOST:
            return
        self._state = _State.LOST
        self._on_lost(error)
        requests, self._requests = self._requests, {}
        for each in requests.values():
            each.listener.on_error(error)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; return the tasks that end with it, for the caller to await.

        The listeners of open requests get no further event.
        """
        self._is_closing = True
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
        if self._call is None:
            self._needs_stream.set()  # all open requests are sent on the next stream
            return
        self._outgoing.append(message)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(_write_all(self._call, self._outgoing))

    async def _run(self) -> None:
        failure = None if self._call is not None else await self._reopen(self._connect_timeout_s)
        while failure is None:
            error = await self._read_until_end()
            if error.reason == SESSION_ENDED:
                failure = await self._rest(self._connect_timeout_s)
            elif isinstance(error, UnauthenticatedError | PermissionDeniedError):
                failure = await self._present_again(error)
            elif isinstance(error, FailedWriteError) and self._may_send_again():
                failure = await self._rest(_SEND_AGAIN_WITHIN_S)
            else:
                failure = error
        self.drop_nowait(failure)

    async def _present_again(self, error: ServiceError) -> ServiceError | None:
        """Open the stream with a token that is fetched anew; return why that is not possible."""
        if asyncio.get_running_loop().time() - self._opened_at_s > _ACCEPTED_AFTER_S:
            self._token.accepted(self._presented)
        self._token.refused(self._presented, error)
        if not self._may_send_again():
            return self._token.refusal(error)
        return await self._reopen(self._connect_timeout_s)

    def _may_send_again(self) -> bool:
        """Tell whether all open requests may be sent again on another stream. Each may once."""
        if any(each.has_text or each.is_sent_again for each in self._requests.values()):
            return False
        for each in self._requests.values():
            each.is_sent_again = True
        return True

    async def _rest(self, connects_within_s: float) -> ServiceError | None:
        """Wait for a request and open a stream for it; return why that is not possible."""
        self._state, self._call = _State.RESTING, None
        self._end_cancelled()
        if not self._requests:
            self._needs_stream.clear()
            await self._needs_stream.wait()
        return await self._reopen(connects_within_s)

    async def _reopen(self, connects_within_s: float) -> ServiceError | None:
        """Open a stream, also for the requests that have no answer; return why that is not possible."""
        self._state, self._call = _State.RESTING, None
        self._end_cancelled()
        try:
            presented = await self._token.get()
            channel = self.connection.channel
        except ServiceError as error:
            return error
        if not await connects_within(channel, connects_within_s):
            return ConnectionLostError("no connection for another stream")
        self._end_cancelled()
        self._open(channel, presented)
        for each in self._requests.values():
            self._post_again(each)
        return None

    def _end_cancelled(self) -> None:
        for sequence in [sequence for sequence, each in self._requests.items() if each.is_cancelled]:
            self._requests.pop(sequence).listener.on_end(pb.End(finish_reason=pb.FINISH_REASON_CANCELLED))

    def _post_again(self, request: _OpenRequest) -> None:
        """Send a request on another stream, with what is left of its timeout."""
        complete, now_s = request.message.complete, asyncio.get_running_loop().time()
        if complete.HasField("timeout_ms"):
            give_timeout(complete, complete.timeout_ms / 1000 - (now_s - request.sent_at_s))
        request.sent_at_s = now_s
        self._post(request.message)

    def _open(self, channel: grpc.aio.Channel, token: str) -> None:
        stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
        self._outgoing, self._writer = deque(), None
        self._call = stub.Session(metadata=with_token(self._metadata, token))
        self._presented, self._opened_at_s = token, asyncio.get_running_loop().time()
        self._state = _State.CONNECTED

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
            away_s = asyncio.get_running_loop().time() - self._lost_at_s
            self._lost_at_s = None
            self._on_accepted(away_s)

    def _dispatch(self, response: pb.SessionResponse) -> None:
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
            is_superseded = response.end.finish_reason == pb.FINISH_REASON_SUPERSEDED
            if is_superseded and request.is_sent_again and response.sequence == self.last_sequence:
                request.listener.on_error(ConnectionLostError("the server still had the request of a lost connection"))
            else:
                request.listener.on_end(response.end)
        elif response.HasField("delta"):
            request.has_text = True
            request.listener.on_text(response.delta.text)


async def _write_all(call: "Call", outgoing: deque[pb.SessionRequest]) -> None:
    try:
        while outgoing:
            await call.write(outgoing.popleft())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the reader gets the reason
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
