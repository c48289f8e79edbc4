"""Three regions on loopback: real server processes behind a real Envoy each, at three distances from the users."""

import asyncio
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import completion_pb2 as pb
from completion_client import Completion, ReplicaSet
from loadtest.bench.replicas.users import NamedUsers, names_of
from tests.deploy.conftest import Site, run_site
from tests.support.fault_proxy import Delay, FaultProxy, Faults
from tests.support.server import eventually, request

HOME = "us-east"
ONE_WAY_S = {HOME: 0.002, "us-west": 0.01, "eu-west": 0.02}
USERS = [f"user-{number}" for number in range(40)]
"""So many that each of two replicas has some, whatever its share of the hash ring."""
NUM_REPLICAS = {HOME: 2, "us-west": 1, "eu-west": 1}
SERVICE = "completion.v1.CompletionService"


@dataclass(frozen=True)
class Region:
    """A region as users reach it."""

    name: str
    site: Site
    proxy: FaultProxy

    def health(self) -> int:
        """Return the HTTP status that a health check of the global DNS gets."""
        return http_status(f"http://{self.site.envoy.health_address}/healthz")


def http_status(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.fixture
def sites(envoy_binary: str) -> Iterator[dict[str, Site]]:
    """Yield the sites of the regions, which start at once."""
    with ExitStack() as stack, ThreadPoolExecutor(len(ONE_WAY_S)) as starters:
        started = {name: starters.submit(_enter, stack, name) for name in ONE_WAY_S}
        yield {name: each.result() for name, each in started.items()}


def _enter(stack: ExitStack, region: str) -> Site:
    own = ExitStack()
    site = own.enter_context(run_site(NUM_REPLICAS[region], f"server.region={region}"))
    stack.push(own)
    return site


@asynccontextmanager
async def near_users(sites: dict[str, Site]) -> AsyncIterator[dict[str, Region]]:
    """Put each region at its distance."""
    async with AsyncExitStack() as stack:
        found = {}
        for name, site in sites.items():
            proxy = await stack.enter_async_context(FaultProxy(site.envoy.address))
            proxy.faults = Faults(Delay(ONE_WAY_S[name]), Delay(ONE_WAY_S[name]))
            found[name] = Region(name, site, proxy)
        yield found


async def replicas_of_users(region: Region) -> dict[str, set[str]]:
    """Return the replicas that answer each user of a region, over two connections."""
    rounds = []
    for sequence in (1, 2):
        async with NamedUsers(region.proxy.address) as callers:
            calls = (callers.complete(names_of(user), sequence=sequence) for user in USERS)
            rounds.append(await asyncio.gather(*calls))
    return {user: set(replicas) for user, *replicas in zip(USERS, *rounds, strict=True)}


async def check_health_over_grpc(region: Region) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(region.proxy.address) as channel:
        try:
            check = health_pb2.HealthCheckRequest(service=SERVICE)
            await health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def ask(client: ReplicaSet, number: int) -> Completion:
    completion = await client.complete(request(f"n = {number} + ", max_tokens=4), timeout_s=10)
    assert completion.end is not None
    assert completion.end.finish_reason in {pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH}
    assert completion.text
    return completion


async def test_users_stay_in_their_region_until_it_is_lost(sites: dict[str, Site]) -> None:
    async with near_users(sites) as regions:
        for region in regions.values():
            replicas = await replicas_of_users(region)
            own = {each.ready["address"] for each in region.site.replicas}
            assert all(len(each) == 1 for each in replicas.values())
            assert set.union(*replicas.values()) == own
            assert region.health() == 200
            assert await check_health_over_grpc(region) is grpc.StatusCode.OK

        home = regions[HOME]
        others = [each for each in regions.values() if each is not home]
        async with await client_at_home(regions) as client:
            # One replica is lost: the region goes on, and none of the users leaves it.
            lost = home.site.replicas[0]
            os.kill(lost.pid, signal.SIGKILL)
            replicas = await replicas_of_users(home)
            assert lost.ready["address"] not in set.union(*replicas.values())
            assert await region_that_answers(client, [*regions.values()], 2) is home
            assert home.health() == 200

            # The other one, too: the region's edge answers as one that is down, to users and to health checks.
            os.kill(home.site.replicas[1].pid, signal.SIGKILL)
            second = await region_that_answers(client, [*regions.values()], 3)
            assert second in others
            await eventually(lambda: home.health() == 503)
            assert await check_health_over_grpc(home) is grpc.StatusCode.UNAVAILABLE
            assert [each.health() for each in others] == [200, 200]

            # A region without even an edge: its address refuses.
            os.kill(second.site.envoy.pid, signal.SIGKILL)
            third = await region_that_answers(client, [each for each in others if each is not second], 4)
            assert third in others


async def client_at_home(regions: Mapping[str, Region]) -> ReplicaSet:
    """Return the client of a user whose first region is HOME; today the user's name decides."""
    addresses = ",".join(each.proxy.address for each in regions.values())
    for number in range(32):
        client = ReplicaSet(addresses, user=f"user-{number}")
        if await region_that_answers(client, [*regions.values()], 1) is regions[HOME]:
            return client
        await client.aclose()
    raise AssertionError("no user's first region is HOME")


async def region_that_answers(client: ReplicaSet, regions: Sequence[Region], number: int) -> Region:
    """Ask a few times, each answered; return the region that answered last."""
    for turn in range(4):
        completion = await ask(client, 10 * number + turn)
    (found,) = (each for each in regions if each.proxy.address == completion.address)
    return found
