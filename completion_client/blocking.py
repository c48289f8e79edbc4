"""Calls that block, for commands and scripts without an event loop, on a channel of `Endpoint.open_channel`."""

import time
from collections.abc import Callable

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.completion import Completion, CompletionBuilder
from completion_client.endpoint import Metadata
from completion_client.errors import ServiceError, error_of_call
from completion_client.health import CHECK, WHOLE_SERVER, status_of

_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def complete(
    channel: grpc.Channel,
    request: pb.CompleteRequest,
    *,
    timeout_s: float,
    metadata: Metadata = (),
    on_text: Callable[[str], object] = lambda text: None,
) -> Completion:
    """Send one request and return its answer, with its error if it failed; `on_text` gets each piece of text."""
    builder = CompletionBuilder(time.perf_counter())
    failure: ServiceError | None = None
    call = CompletionServiceStub(channel).Complete(request, timeout=timeout_s, metadata=metadata)
    try:
        for event in call:
            if text := builder.add(event, time.perf_counter()):
                on_text(text)
    except grpc.RpcError as error:
        failure = error_of_call(error)
    except ServiceError as error:  # there is no token any more
        failure = error
    finally:
        completion = builder.build(time.perf_counter(), failure)
        call.cancel()
    return completion


def check_health(channel: grpc.Channel, timeout_s: float) -> str:
    """Return the health of the whole server, such as "SERVING".

    Raises:
        grpc.RpcError: the server was not reached, or this listener does not offer health checks.

    """
    check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK)
    return status_of(check(WHOLE_SERVER, timeout=timeout_s))


def connect(channel: grpc.Channel, timeout_s: float) -> bool:
    """Connect, so that the times of the next call include no handshake; return whether a server answers.

    Sends a health check, since any answer will do. Waiting for the channel's state instead would make closing the
    channel wait for gRPC's polling.
    """
    try:
        check_health(channel, timeout_s)
    except grpc.RpcError as error:
        return isinstance(error, grpc.Call) and error.code() not in _NO_ANSWER
    return True
