"""Opens channels to several endpoints, the nearest first: for commands that ask once, without an event loop."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import grpc

from completion_client.client import CompletionClient
from completion_client.endpoint import Endpoint
from completion_client.regions.regions import Regions
from completion_client.regions.settings import RegionSettings


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
    come last. A single endpoint is not measured.

    Raises:
        EndpointError: a PEM file of an endpoint can't be read.

    """

    async def race() -> list[tuple[Endpoint, float | None]]:
        async with Regions(endpoints, settings=settings) as regions:
            await regions.ready()
            order = CompletionClient(regions, user=user, tenant=tenant).order
            return [(each, regions.state(each).round_trip_ms) for each in order]

    found = asyncio.run(race()) if len(endpoints) > 1 else [(each, None) for each in endpoints]
    with ExitStack() as stack:
        yield [Contender(each, stack.enter_context(each.open_channel()), trip_ms) for each, trip_ms in found]
