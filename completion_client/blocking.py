"""Calls that block, for commands and scripts without an event loop, on a channel of `Endpoint.open_channel`."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.client import CompletionClient
from completion_client.completion import Completion, CompletionBuilder
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ServiceError, error_of_call
from completion_client.health import CHECK, WHOLE_SERVER, status_of
from completion_client.region_settings import RegionSettings
from completion_client.regions import Regions

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

    Raises grpc.RpcError if the server was not reached, or this listener does not offer health checks.
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


@dataclass(frozen=True, slots=True)
class Contender:
    """An endpoint with an open channel."""

    endpoint: Endpoint
    channel: grpc.Channel
    round_trip_ms: float | None
    """None if it did not answer in time, or if there was no race."""


@contextmanager
def open_in_order(
    endpoints: Sequence[Endpoint], user: str, tenant: str = "", *, settings: RegionSettings | None = None
) -> Iterator[list[Contender]]:
    """Open channels and yield them in the user's order of preference; leaving the context closes them.

    Several endpoints race with health checks. Those that don't answer within `race_s`, or some time after the first,
    come last. A single endpoint is not measured. Raises EndpointError if a PEM file of an endpoint can't be read.
    """

    async def race() -> list[tuple[Endpoint, float | None]]:
        async with Regions(endpoints, settings=settings) as regions:
            await regions.ready()
            order = CompletionClient(regions, user=user, tenant=tenant).order
            return [(each, regions.state(each).round_trip_ms) for each in order]

    found = asyncio.run(race()) if len(endpoints) > 1 else [(each, None) for each in endpoints]
    with ExitStack() as stack:
        yield [Contender(each, stack.enter_context(each.open_channel()), trip_ms) for each, trip_ms in found]
