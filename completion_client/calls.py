"""One `Complete` call on a channel."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import Metadata
from completion_client.errors import error_of_call

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
    call = stub.Complete(request, timeout=timeout_s, metadata=metadata)
    try:
        async for event in call:
            yield event
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error) from error
    finally:
        call.cancel()
