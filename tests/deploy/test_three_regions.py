"""Three regions on loopback: real server processes behind a real Envoy each."""

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, Regions, RegionSettings
from tests.deploy.conftest import Site, run_site
from tests.support.named_users import NamedUsers, names_of
from tests.support.server import eventually, request

pytestmark = pytest.mark.full

HOME = "us-east"
NUM_REPLICAS = {HOME: 2, "us-west": 1, "eu-west": 1}
USERS = [f"user-{number}" for number in range(40)]
"""So many that each of two replicas has some, whatever its share of the hash ring."""
EQUALLY_NEAR = RegionSettings(tier_margin_ms=10_000.0)
"""Round trips on a busy machine would move the user to another region."""


@pytest.fixture
def regions(envoy_binary: str) -> Iterator[dict[str, Site]]:
    """Yield the sites of the regions, which start at once."""

    def enter(region: str) -> Site:
        own = ExitStack()
        site = own.enter_context(run_site(NUM_REPLICAS[region], f"server.region={region}"))
        stack.push(own)
        return site

    with ExitStack() as stack, ThreadPoolExecutor(len(NUM_REPLICAS)) as starters:
        yield dict(zip(NUM_REPLICAS, starters.map(enter, NUM_REPLICAS), strict=True))


async def health_over_grpc(region: Site) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(region.envoy.address) as channel:
        check = health_pb2.HealthCheckRequest(service="completion.v1.CompletionService")
        call = health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
        return await call.code()


async def replicas_of_users(region: Site) -> set[str]:
    """Return the replicas of a region that answer its users, each user one, over two connections.

    One call after another: of many at once, Envoy sends those above a replica's bound elsewhere. On a busy machine it
    may take all replicas for unhealthy for a moment.
    """
    found: dict[str, set[str]] = {user: set() for user in USERS}

    async def is_answered(callers: NamedUsers, user: str, sequence: int) -> bool:
        try:
            found[user].add(await callers.complete(names_of(user), sequence=sequence))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True

    for sequence in (1, 2):
        async with NamedUsers(region.envoy.address) as callers:
            for user in USERS:
                await eventually(partial(is_answered, callers, user, sequence), 60, poll_s=0.1)
    assert {len(replicas) for replicas in found.values()} == {1}
    return set.union(*found.values())


async def client_at_home(endpoints: Regions, regions: Mapping[str, Site]) -> CompletionClient:
    """Return the client of a user whose first region is HOME; the user's name decides."""
    for number in range(32):
        client = CompletionClient(endpoints, user=f"user-{number}")
        if await region_that_answers(client, regions) == HOME:
            return client
        await client.aclose()
    raise AssertionError("no user's first region is HOME")


async def region_that_answers(client: CompletionClient, regions: Mapping[str, Site]) -> str:
    """Ask a few times, each answered; return the region that answered last."""
    for turn in range(4):
        completion = await client.complete(request(f"n = {turn} + ", max_tokens=4), timeout_s=10)
        assert completion.end is not None
        assert completion.end.finish_reason in {pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH}
        assert completion.text
    (found,) = (name for name, each in regions.items() if each.envoy.address == completion.address)
    return found


async def test_users_stay_in_their_region_until_it_is_lost(regions: dict[str, Site]) -> None:
    for region in regions.values():
        assert await replicas_of_users(region) == {each.ready["address"] for each in region.replicas}
        assert (region.envoy.health(), await health_over_grpc(region)) == (200, grpc.StatusCode.OK)

    home, others = regions[HOME], {name: each for name, each in regions.items() if name != HOME}
    addresses = ",".join(each.envoy.address for each in regions.values())
    async with (
        Regions(addresses, settings=EQUALLY_NEAR) as endpoints,
        await client_at_home(endpoints, regions) as client,
    ):
        # One replica is lost: the region goes on, and none of the users leaves it.
        os.kill(home.replicas[0].pid, signal.SIGKILL)
        assert await replicas_of_users(home) == {home.replicas[1].ready["address"]}
        assert await region_that_answers(client, regions) == HOME
        assert home.envoy.health() == 200

        # The other one, too: the region's edge answers as one that is down, to users and to health checks.
        os.kill(home.replicas[1].pid, signal.SIGKILL)
        second = await region_that_answers(client, regions)
        assert second != HOME
        await eventually(lambda: home.envoy.health() == 503)
        assert await health_over_grpc(home) is grpc.StatusCode.UNAVAILABLE
        assert [each.envoy.health() for each in others.values()] == [200, 200]

        # A region without even an edge: its address refuses.
        os.kill(regions[second].envoy.pid, signal.SIGKILL)
        assert await region_that_answers(client, regions) in others.keys() - {second}
