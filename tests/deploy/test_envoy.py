"""The shipped configuration of Envoy, in the real Envoy, in front of real server processes."""

import subprocess
from collections import Counter

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.bench.replicas.users import NamedUsers, busiest_over_mean, names_of
from tests.deploy.conftest import SHIPPED, Site
from tests.support.server import eventually

NUM_USERS = 100
"""The replicas' ports differ in each run, and so do their shares of the hash ring: of so many users each has some."""


def test_the_shipped_file_is_valid(envoy_binary: str) -> None:
    command = [envoy_binary, "--mode", "validate", "--config-path", str(SHIPPED), "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "eprecated" not in done.stderr


async def test_a_users_calls_reach_one_replica(site: Site) -> None:
    async with NamedUsers(site.envoy.address) as callers:
        found = {
            user: {await callers.complete(names_of(user), sequence=number) for number in range(1, 4)}
            for user in (f"user-{number}" for number in range(NUM_USERS))
        }
    assert all(len(replicas) == 1 for replicas in found.values())
    assert len(set.union(*found.values())) == 3


async def test_a_users_connections_do_not_matter(site: Site) -> None:
    found = set()
    for _ in range(3):
        async with NamedUsers(site.envoy.address) as callers:
            found.add(await callers.complete(names_of("ada")))
    assert len(found) == 1


async def test_users_of_two_tenants_with_one_name_are_two_keys(site: Site) -> None:
    async with NamedUsers(site.envoy.address) as callers:
        names = [f"user-{number}" for number in range(NUM_USERS)]
        pairs = [[await callers.complete(names_of(name, tenant)) for tenant in ("a", "b")] for name in names]
        swapped = [(await callers.complete(names_of("a", "b")), await callers.complete(names_of("b", "a")))]
    num_apart = sum(len(set(pair)) == 2 for pair in pairs)
    assert 0 < num_apart < NUM_USERS  # two of three on average
    assert len(swapped) == 1


async def test_a_caller_without_a_name_is_refused_by_the_server(site: Site) -> None:
    async with NamedUsers(site.envoy.address) as callers:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await callers.complete((("x-session-id", "s"),))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_open_streams_are_bounded(site: Site) -> None:
    num = 240  # 1.25 * 240 / 3 is a whole number
    await eventually(lambda: not sum(site.envoy.open_requests().values()))  # those of other tests
    async with NamedUsers(site.envoy.address) as callers:
        streams = await callers.open_streams(f"user-{number}" for number in range(num))
        assert sum(site.envoy.open_requests().values()) == num
        replicas = {user: stream.replica for user, stream in streams.items()}
    assert len(set(replicas.values())) == 3
    assert busiest_over_mean(replicas, 3) <= 1.25


async def test_streams_above_the_bound_go_to_other_replicas(site: Site) -> None:
    """One user, so that without the bound all streams would be on one replica."""
    num = 36
    await eventually(lambda: not sum(site.envoy.open_requests().values()))  # those of other tests
    async with NamedUsers(site.envoy.address) as callers:
        replicas = {str(number): (await callers.open_stream(names_of("ada"))).replica for number in range(num)}
    assert busiest_over_mean(replicas, 3) * num / 3 <= 1.25 * num / 3 + 1  # Envoy rounds up
    assert len(set(replicas.values())) == 3


async def test_health_is_that_of_a_replica_and_other_services_are_not_passed_on(site: Site) -> None:
    async with grpc.aio.insecure_channel(site.envoy.address) as channel:
        check = health_pb2.HealthCheckRequest(service="completion.v1.CompletionService")
        answer = await health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        other = channel.unary_unary("/completion.v1.AdminService/GetStatus")
        assert await other(b"", timeout=5).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_shipped_health_check_names_a_service_that_the_server_has(site: Site) -> None:
    assert site.envoy.num_healthy() == len(site.replicas) == 3
    assert Counter(site.envoy.requests()).keys() == {each.ready["address"] for each in site.replicas}
