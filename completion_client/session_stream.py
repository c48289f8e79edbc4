"""A `Session` stream that reconnects: the transport below `Session`, with callbacks and without waiting.

States of a stream:

    CONNECTED  -- the server ends it as SESSION_ENDED -->  RESTING
    CONNECTED  -- a write fails ------------------------>  RESTING (once for each request, and if none has text)
    CONNECTED  -- any other end, or drop_nowait -------->  LOST
    RESTING    -- a request is sent -------------------->  CONNECTED (requests without an answer are sent again)
    RESTING    -- no connection, or drop_nowait -------->  LOST
    LOST       -- after the back-off ------------------->  CONNECTED

A loss fails all open requests, since their text would be stale after a reconnect. A request that is sent while the
stream is LOST fails at once. A GOAWAY needs no state of its own: gRPC opens the next stream on a new connection, and
the end of the old stream is one of the ends above.

A write that fails hides the server's status from gRPC's caller: the server may have ended the stream in good order just
then. The requests are sent again. A server that has not noticed yet that the old connection is lost answers the newest
of them as superseded, by itself: that is a loss, too.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.channel_pool import ChannelSource
from completion_client.endpoint import Metadata
from completion_client.errors import (
    SESSION_ENDED,
    ConnectionLostError,
    FailedWriteError,
    ServiceError,
    error_of_call,
    error_of_message,
)
from completion_client.request_fields import give_timeout
from completion_client.session_settings import Backoff, RequestListener, SessionSettings, StreamListener

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

    Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


_log = logging.getLogger(__name__)

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
    """Whether it was sent again after a failed write."""


class SessionStream:
    """Sends the requests of one session and passes the answers to their listeners."""

    def __init__(
        self,
        channels: ChannelSource,
        *,
        metadata: Metadata = (),
        settings: SessionSettings | None = None,
        listener: StreamListener | None = None,
    ) -> None:
        """Open the first stream with `start_nowait`."""
        self._channels = channels
        self._metadata = metadata
        self._settings = settings or SessionSettings()
        self._listener = listener
        self._backoff = Backoff(self._settings)
        self._state = _State.LOST
        self._requests: dict[int, _OpenRequest] = {}
        self._last_sequence = 0
        self._has_logged_refusal = False
        self._outgoing: deque[pb.SessionRequest] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._call: Call | None = None
        self._lost_at_s: float | None = None
        """When the stream was lost, until the server answers on a new one."""
        self._is_closing = False
        self._needs_stream = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        return self._state is _State.RESTING or (self._state is _State.CONNECTED and self._lost_at_s is None)

    def start_nowait(self, lost_at_s: float | None = None) -> None:
        """Open the first stream and begin to read. The channel should be connected.

        `lost_at_s` is the loop's time at which an earlier stream was lost that this one replaces.
        """
        self._lost_at_s = lost_at_s
        self._open(self._channels.channel())
        self._runner = asyncio.create_task(self._run())

    def send_nowait(
        self, request: pb.CompleteRequest, listener: RequestListener, timeout_s: float | None = None
    ) -> None:
        """Send a request whose sequence number is higher than those before it.

        `timeout_s` is how long the caller waits. Only a stream that can send it to another server needs to know.

        Raises:
            ValueError: the number is not above 0 and above those before it; the server would not answer it.
            ConnectionLostError: the stream is lost and not open again.

        """
        if request.sequence <= self._last_sequence:
            msg = f"sequence: must be above {self._last_sequence}, was {request.sequence}"
            raise ValueError(msg)
        if self._state is _State.LOST:
            msg = "not connected"
            raise ConnectionLostError(msg)
        self._last_sequence = request.sequence
        message = pb.SessionRequest(complete=request)
        self._requests[request.sequence] = _OpenRequest(message, listener, asyncio.get_running_loop().time())
        self._post(message)

    @property
    def num_open(self) -> int:
        """Requests that have neither ended nor failed."""
        return len(self._requests)

    def is_open(self, sequence: int) -> bool:
        """Tell whether a request has neither ended nor failed."""
        return sequence in self._requests

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
        """Send feedback on a completion. Feedback on a lost stream is dropped."""
        if self._state is _State.CONNECTED:
            self._post(pb.SessionRequest(feedback=feedback))

    def drop_nowait(self, error: ServiceError | None = None) -> None:
        """Drop the connection and open another after the back-off, as after a change of network."""
        call = self._call
        self._lose(error or ConnectionLostError("the connection was dropped"))
        self._channels.disconnect()
        if call is not None:
            call.cancel()

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
        while True:
            error = await self._read_until_end()
            is_unknown = isinstance(error, FailedWriteError) and self._may_send_again()
            if is_unknown or error.reason == SESSION_ENDED:
                if await self._rest(_SEND_AGAIN_WITHIN_S if is_unknown else None):
                    continue
                error = ConnectionLostError("no connection for another stream")
            self._lose(error)
            self._channels.disconnect()
            retry_after_s = (error.retry_after_ms or 0) / 1000
            while self._state is _State.LOST:
                await asyncio.sleep(retry_after_s + self._backoff.next_s())
                retry_after_s = 0.0
                await self._reconnect()

    def _may_send_again(self) -> bool:
        """Tell whether all open requests may be sent again after a failed write. Each may once."""
        if any(each.has_text or each.is_sent_again for each in self._requests.values()):
            return False
        for each in self._requests.values():
            each.is_sent_again = True
        return True

    async def _rest(self, connects_within_s: float | None) -> bool:
        """Wait for a request and open a stream for it; return whether that was possible."""
        self._state, self._call = _State.RESTING, None
        self._end_cancelled()
        if not self._requests:
            self._needs_stream.clear()
            await self._needs_stream.wait()
        try:
            async with asyncio.timeout(connects_within_s):
                channel = await self._channels.ready()
        except (ConnectionLostError, TimeoutError):
            return False
        if self._state is not _State.RESTING:
            return False  # dropped meanwhile
        self._end_cancelled()
        self._open(channel)
        for each in self._requests.values():
            self._post_again(each)
        return True

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

    async def _reconnect(self) -> None:
        try:
            channel = await self._channels.ready()
        except ConnectionLostError:
            self._channels.disconnect()
            return
        if channel is self._channels.channel():  # else the source has changed to another server meanwhile
            self._open(channel)

    def _open(self, channel: grpc.aio.Channel) -> None:
        stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
        self._outgoing = deque()
        self._writer = None
        self._call = stub.Session(metadata=self._metadata)
        self._state = _State.CONNECTED

    async def _read_until_end(self) -> ServiceError:
        """Pass answers on until the stream ends; return the reason of its end."""
        call = self._call
        if call is None:
            return ConnectionLostError("the connection was dropped")
        try:
            await call.initial_metadata()
            self._note_reconnected(call)
            while isinstance(response := await call.read(), pb.SessionResponse):
                self._backoff.reset()
                self._dispatch(response)
                if self._settings.read_interval_s:
                    await asyncio.sleep(self._settings.read_interval_s)
        except grpc.aio.AioRpcError as error:
            return error_of_call(error)
        except asyncio.CancelledError:
            # gRPC raises it for a cancelled call, too. Only the cancellation of this task is passed on.
            if self._is_closing or not call.cancelled():
                raise
            return ConnectionLostError("the connection was dropped")
        return ConnectionLostError("the stream ended")

    def _note_reconnected(self, call: "Call") -> None:
        """Report a reconnect once the server has accepted the stream or sent its first answer."""
        if self._lost_at_s is None or call.done():
            return
        away_s = asyncio.get_running_loop().time() - self._lost_at_s
        self._lost_at_s = None
        if self._listener is not None:
            self._listener.on_reconnected(away_s)

    def _dispatch(self, response: pb.SessionResponse) -> None:
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
            if is_superseded and request.is_sent_again and response.sequence == self._last_sequence:
                request.listener.on_error(ConnectionLostError("the server still had the request of a lost connection"))
            else:
                request.listener.on_end(response.end)
        elif response.HasField("delta"):
            request.has_text = True
            request.listener.on_text(response.delta.text)

    def _lose(self, error: ServiceError) -> None:
        """Fail the open requests, once for each stream."""
        if self._state is _State.LOST:
            return
        self._state, self._call = _State.LOST, None
        self._needs_stream.set()
        if self._lost_at_s is None:  # else this stream was opened after a loss, but never accepted
            self._lost_at_s = asyncio.get_running_loop().time()
        if self._listener is not None:
            self._listener.on_lost(error)
        requests, self._requests = self._requests, {}
        for each in requests.values():
            each.listener.on_error(error)


async def _write_all(call: "Call", outgoing: deque[pb.SessionRequest]) -> None:
    try:
        while outgoing:
            await call.write(outgoing.popleft())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the reader gets the reason
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
