"""An editor's session: requests on one stream that lives as long as the editor."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion_client.completion import Completion, CompletionBuilder
from completion_client.errors import ConnectionLostError, DeadlineExceededError, ServiceError
from completion_client.request_fields import Numbering, give_timeout

if TYPE_CHECKING:
    from completion_client.stream import ReplicaStream


class Session:
    """Sends an editor's requests on one stream, which reconnects by itself.

    The server keeps one live request per user: a newer request ends the older one as superseded. The loss of the stream
    fails the open requests; while the stream is away, new requests fail at once. A stream that the server ends in good
    order, because it is idle or old, fails nothing: the session opens another with its next request.
    """

    def __init__(self, stream: "ReplicaStream", session_id: str | None = None) -> None:
        """Send requests on a stream that was started. `CompletionClient.session` makes both."""
        self._stream = stream
        self._numbering = Numbering(session_id)
        self._pending: dict[int, PendingCompletion] = {}

    @property
    def session_id(self) -> str:
        """The session's name on the wire."""
        return self._numbering.session_id

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        return self._stream.is_connected

    def submit_nowait(self, request: pb.CompleteRequest, *, timeout_s: float | None = None) -> "PendingCompletion":
        """Send a request and return its answer to come.

        The session sets `session_id` and `sequence`, and gives the server `timeout_s` as the deadline. After that time
        the request is cancelled and fails with DeadlineExceededError. Raises ConnectionLostError if the stream is lost
        and not open again.
        """
        message = self._numbering.numbered(request, names_own=False)
        if timeout_s is not None:
            give_timeout(message, timeout_s)
        pending = PendingCompletion(self._stream, message.sequence, self._pending.pop)
        self._stream.send_nowait(message, pending, timeout_s)
        self._pending[message.sequence] = pending
        if timeout_s is not None:
            pending.expire_after(timeout_s)
        return pending

    async def complete(self, request: pb.CompleteRequest, *, timeout_s: float | None = None) -> Completion:
        """Send a request and return its whole answer. Cancelling this coroutine cancels the request.

        Raises ServiceError if the request or the stream failed, or the timeout passed.
        """
        return await self.submit_nowait(request, timeout_s=timeout_s).result()

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        """Report the use of a completion of this session, by its `sequence`, also while no stream is open.

        The report goes to the server that answered. It is dropped if that can't be reached.
        """
        message = pb.ReportFeedbackRequest()
        message.CopyFrom(feedback)
        message.session_id = self.session_id
        self._stream.report_nowait(message)

    def reconnect_nowait(self) -> None:
        """Drop the connection and open another, as after a change of network. Open requests fail."""
        self._stream.drop_nowait()

    async def aclose(self) -> None:
        """End the stream; open requests fail with ConnectionLostError.

        Raises Exception if a listener raised it, which ended the stream.
        """
        closing = self._stream.close_nowait()
        for pending in tuple(self._pending.values()):
            pending.on_error(ConnectionLostError("the session was closed"))
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


class PendingCompletion:
    """The answer to one request while it arrives. Iterate over it for the text, or await `result` for the whole.

    The iteration yields the text since the last step as one string, so a slow reader falls behind by one string
    only.
    """

    def __init__(self, stream: "ReplicaStream", sequence: int, on_done: Callable[[int], object]) -> None:
        """Wait for the events of a request of `stream`; `on_done` is called with its sequence number at its end."""
        self._stream = stream
        self._sequence = sequence
        self._on_done = on_done
        self._builder = CompletionBuilder(time.monotonic())
        self._unread: list[str] = []
        self._changed = asyncio.Event()
        self._completion: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sequence(self) -> int:
        """The request's sequence number."""
        return self._sequence

    @property
    def is_done(self) -> bool:
        """Whether the request has ended or failed."""
        return self._completion.done()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the text as it arrives. Leaving the iteration early does not cancel the request.

        Raises ServiceError if the request or the stream failed, or the timeout passed.
        """
        while not self._completion.done() or self._unread:
            await self._changed.wait()
            self._changed.clear()
            text, self._unread = "".join(self._unread), []
            if text:
                yield text
        self._completion.result().raise_for_error()

    async def result(self) -> Completion:
        """Return the whole answer. Cancelling this coroutine cancels the request.

        Raises ServiceError if the request or the stream failed, or the timeout passed.
        """
        try:
            completion = await asyncio.shield(self._completion)
        except asyncio.CancelledError:
            self._abandon(ServiceError("the request was cancelled", status=grpc.StatusCode.CANCELLED))
            raise
        completion.raise_for_error()
        return completion

    def cancel_nowait(self) -> None:
        """Cancel the request; it ends with the finish reason "cancelled". Ignored if it has ended."""
        self._stream.cancel_nowait(self._sequence)

    def expire_after(self, timeout_s: float) -> None:
        """Cancel the request and fail it with DeadlineExceededError if it has not ended by then."""
        error = DeadlineExceededError("the deadline passed first")
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._abandon, error)

    def on_text(self, text: str) -> None:
        """See RequestListener."""
        self._add(self._builder.add_text(text, time.monotonic()))

    def on_end(self, end: pb.End) -> None:
        """See RequestListener."""
        self._add(self._builder.add_end(end, time.monotonic()))
        self._finish()

    def on_error(self, error: ServiceError) -> None:
        """See RequestListener."""
        self._finish(error)

    def _abandon(self, error: ServiceError) -> None:
        """Cancel the request and fail it here, without waiting for the server's end."""
        self._stream.discard_nowait(self._sequence)
        self._finish(error)

    def _add(self, text: str) -> None:
        if text:
            self._unread.append(text)
            self._changed.set()

    def _finish(self, error: ServiceError | None = None) -> None:
        if self._completion.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        completion = self._builder.build(time.monotonic(), error)
        self._completion.set_result(replace(completion, sequence=self._sequence))
        self._changed.set()
        self._on_done(self._sequence)
