"""One `Complete` call on a channel, and the numbers of requests."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.completion import Completion, CompletionBuilder
from completion_client.endpoint import Metadata
from completion_client.errors import error_of_call
from completion_client.tracing import add_current_trace, trace_metadata

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub


async def stream_events(
    channel: grpc.aio.Channel, request: pb.CompleteRequest, *, timeout_s: float | None = None, metadata: Metadata = ()
) -> AsyncGenerator[pb.CompleteResponse, None]:
    """Send a request and yield the events of its answer. Cancelling the consumer cancels the call.

    Raises:
        ServiceError: the call failed, or the timeout passed.

    """
    stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
    call = stub.Complete(request, timeout=timeout_s, metadata=(*metadata, *trace_metadata(request)))
    try:
        async for event in call:
            yield event
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error) from error
    finally:
        call.cancel()


async def complete(
    channel: grpc.aio.Channel,
    request: pb.CompleteRequest,
    *,
    timeout_s: float | None = None,
    metadata: Metadata = (),
    on_text: Callable[[str], object] | None = None,
) -> Completion:
    """Send a request and return its whole answer; `on_text` gets each piece of text as it arrives.

    Raises:
        ServiceError: the call or the request failed, or the timeout passed.

    """
    builder = CompletionBuilder(time.monotonic())
    async with aclosing(stream_events(channel, request, timeout_s=timeout_s, metadata=metadata)) as events:
        async for event in events:
            text = builder.add(event, time.monotonic())
            if text and on_text is not None:
                on_text(text)
    completion = builder.build(time.monotonic())
    completion.raise_for_error()
    return completion


class Numbering:
    """Numbers the requests of one caller. The server takes an older number for a superseded request."""

    __slots__ = ("_last_sequence", "session_id")

    def __init__(self) -> None:
        """Begin a session of its own."""
        self.session_id = make_session_id()
        """The session of requests that name none."""
        self._last_sequence = 0

    def numbered(self, request: pb.CompleteRequest) -> pb.CompleteRequest:
        """Return a copy of a request that has a session, a sequence number and the current trace, if there is one."""
        message = pb.CompleteRequest()
        message.CopyFrom(request)
        message.session_id = message.session_id or self.session_id
        if not message.sequence:
            self._last_sequence += 1
            message.sequence = self._last_sequence
        add_current_trace(message)
        return message


def make_session_id() -> str:
    """Return the id of a new session."""
    return f"client-{uuid.uuid4().hex[:12]}"
