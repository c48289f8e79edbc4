"""The shipped configuration of Envoy, in the real Envoy, in front of real server processes.

Users stay at their replicas; who moves when one is killed, drained or refuses; streams that end in good order.
"""

import asyncio
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.deploy.conftest import SHIPPED, Site, health_over_http, run_site
from tests.support.envoy import Envoy, adapted, load_shipped
from tests.support.named_users import NamedUsers, OpenStream, busiest_over_mean, names_of
from tests.support.server import eventually

pytestmark = pytest.mark.full

BOUND = 1.25
USERS = [f"user-{number}" for number in range(256)]  # BOUND * 256 / 4 is a whole number
"""The replicas' ports differ in each run, and so do their shares of the hash ring: of so many users each has some."""


async def test_a_users_calls_reach_one_replica_over_any_connection(site: Site) -> None:
    found: dict[str, set[str]] = {user: set() for user in USERS[:100]}
    for sequence in (1, 2, 3):
        async with NamedUsers(site.envoy.address) as callers:
            for user, replicas in found.items():
                replicas.add(await callers.complete(names_of(user), sequence=sequence))
    assert all(len(replicas) == 1 for replicas in found.values())
    assert len(set.union(*found.values())) == 3


async def test_users_of_two_tenants_with_one_name_are_two_keys(site: Site) -> None:
    async with NamedUsers(site.envoy.address) as callers:
        pairs = [{await callers.complete(names_of(name, tenant)) for tenant in ("a", "b")} for name in USERS[:100]]
    assert {len(pair) for pair in pairs} == {1, 2}  # two of three are apart on average


async def test_a_caller_without_a_name_is_refused_by_the_server(site: Site) -> None:
    async with NamedUsers(site.envoy.address) as callers:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await callers.complete((("x-session-id", "s"),))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_open_streams_are_bounded(site: Site) -> None:
    num = 240  # BOUND * 240 / 3 is a whole number
    await eventually(lambda: not sum(site.envoy.open_requests().values()))  # those of other tests
    async with NamedUsers(site.envoy.address) as callers:
        streams = await callers.open_streams(USERS[:num])
        assert sum(site.envoy.open_requests().values()) == num
        replicas = {user: stream.replica for user, stream in streams.items()}
    assert len(set(replicas.values())) == 3
    assert busiest_over_mean(replicas, 3) <= BOUND


async def test_streams_above_the_bound_go_to_other_replicas(site: Site) -> None:
    """One user, so that without the bound all streams would be on one replica."""
    num = 36
    await eventually(lambda: not sum(site.envoy.open_requests().values()))  # those of other tests
    async with NamedUsers(site.envoy.address) as callers:
        replicas = {str(number): (await callers.open_stream(names_of("ada"))).replica for number in range(num)}
    assert busiest_over_mean(replicas, 3) * num / 3 <= BOUND * num / 3 + 1  # Envoy rounds up
    assert len(set(replicas.values())) == 3


async def test_health_is_that_of_a_replica_and_other_services_are_not_passed_on(site: Site) -> None:
    assert site.envoy.num_healthy() == 3
    assert site.envoy.requests().keys() == {each.ready["address"] for each in site.replicas}
    async with grpc.aio.insecure_channel(site.envoy.address) as channel:
        check = health_pb2.HealthCheckRequest(service="completion.v1.CompletionService")
        answer = await health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        other = channel.unary_unary("/completion.v1.AdminService/GetStatus")
        assert await other(b"", timeout=5).code() is grpc.StatusCode.UNIMPLEMENTED


def fresh_health(envoy: Envoy) -> int:
    """Return the status of a health check for which Envoy has looked at its replicas; others repeat an older one."""
    before = envoy.stat("cluster.admin.upstream_rq_completed")
    while True:
        status = health_over_http(envoy)
        if envoy.stat("cluster.admin.upstream_rq_completed") > before:
            return status


@pytest.mark.parametrize(
    ("servers", "share", "status"),
    [(None, None, 200), ("2", None, 200), ("3", None, 503), ("4", None, 503), ("4", "0.25", 200), ("2", "1", 503)],
)
def test_a_region_is_healthy_by_the_share_of_the_servers_that_it_should_have(
    site: Site, monkeypatch: pytest.MonkeyPatch, servers: str | None, share: str | None, status: int
) -> None:
    """One server is there and healthy; those that are gone for good are not even in DNS."""
    for name, value in (("COMPLETION_REGION_SERVERS", servers), ("COMPLETION_REGION_MIN_SHARE", share)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    document = adapted(load_shipped(SHIPPED), [site.replicas[0].ready["address"]])
    with Envoy.running(document, 1) as envoy:
        assert fresh_health(envoy) == status


def test_many_health_checks_look_at_the_replicas_once_a_second(site: Site) -> None:
    """Anybody may send them, and each look takes time of Envoy's main thread."""
    before = site.envoy.stat("cluster.admin.upstream_rq_completed")
    assert {health_over_http(site.envoy) for _ in range(200)} == {200}
    assert site.envoy.stat("cluster.admin.upstream_rq_completed") - before < 100


async def test_a_region_that_loses_more_than_half_of_its_servers_is_unhealthy(
    envoy_binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_REGION_SERVERS", "4")
    with run_site(3) as site:
        found = [fresh_health(site.envoy)]
        for num_left in (2, 1):
            os.kill(site.replicas[num_left].pid, signal.SIGKILL)
            while site.envoy.num_healthy() > num_left:
                await asyncio.sleep(0.05)
            found.append(fresh_health(site.envoy))
    assert found == [200, 200, 503]


@pytest.fixture
def four(envoy_binary: str) -> Iterator[Site]:
    with run_site(4) as running:
        yield running


async def replicas_of(callers: NamedUsers) -> dict[str, str]:
    """Return each user's replica while nothing else is open, so that the bound moves nobody."""
    return {user: await callers.complete(names_of(user)) for user in USERS}


async def reopened(callers: NamedUsers, streams: dict[str, OpenStream], lost: str) -> dict[str, str]:
    """Open the streams of a lost replica's users again, and return each user's replica."""
    gone = [user for user, stream in streams.items() if stream.replica == lost]
    for user in gone:
        await asyncio.wait_for(streams[user].call.code(), 20)
    again = await callers.open_streams(gone)
    return {user: stream.replica for user, stream in (streams | again).items()}


async def test_killing_one_of_four_moves_its_users_alone(four: Site) -> None:
    async with NamedUsers(four.envoy.address) as callers:
        keys = await replicas_of(callers)
        streams = await callers.open_streams(USERS)
        before = {user: stream.replica for user, stream in streams.items()}
        assert busiest_over_mean(before, 4) <= BOUND
        lost = four.replicas[0].ready["address"]
        os.kill(four.replicas[0].pid, signal.SIGKILL)
        after = await reopened(callers, streams, lost)
        # Connected already, no stream of another replica ends.
        assert {user for user in USERS if before[user] != after[user]} == {
            user for user in USERS if before[user] == lost
        }
        assert sum(before[user] != after[user] for user in USERS) <= len(USERS) / 4 * BOUND
        # 1.25 * 256 / 3 is not a whole number: the bound is rounded up.
        assert busiest_over_mean(after, 3) * len(USERS) / 3 <= BOUND * len(USERS) / 3 + 1
        for stream in callers.streams:
            stream.call.cancel()
        await eventually(lambda: not sum(four.envoy.open_requests().values()))
        moved = {user for user, replica in (await replicas_of(callers)).items() if replica != keys[user]}
    own = {user for user in USERS if keys[user] == lost}
    assert own <= moved
    assert len(moved - own) <= 0.03 * len(USERS)  # by Maglev's table, not by the bound


async def test_a_replica_in_drain_gets_no_new_calls_and_its_sessions_move(four: Site) -> None:
    async with NamedUsers(four.envoy.address) as callers:
        streams = await callers.open_streams(USERS)
        drained = four.replicas[1]
        address = drained.ready["address"]
        drained.process.terminate()
        after = await reopened(callers, streams, address)
        assert address not in after.values()
        before = four.envoy.requests()[address]
        assert address not in (await replicas_of(callers)).values()
        assert four.envoy.requests()[address] == before
        gone = next(stream for stream in streams.values() if stream.replica == address)
        assert await gone.call.code() is grpc.StatusCode.UNAVAILABLE
        assert all(not stream.call.done() for stream in streams.values() if stream.replica != address)


async def test_a_call_to_a_replica_that_was_just_killed_is_answered_by_another(four: Site) -> None:
    async with NamedUsers(four.envoy.address) as callers:
        keys = await replicas_of(callers)
        lost = four.replicas[2].ready["address"]
        users = [user for user in USERS if keys[user] == lost][:20]
        assert users
        os.kill(four.replicas[2].pid, signal.SIGKILL)
        found = [await callers.complete(names_of(user), sequence=2) for user in users]
    assert lost not in found
    assert four.envoy.stat("cluster.replicas.upstream_rq_retry") > 0


async def test_two_editors_of_a_user_share_a_replica_unless_it_is_full(four: Site) -> None:
    async with NamedUsers(four.envoy.address) as callers:
        first = await callers.open_streams(USERS)
        second = await callers.open_streams(USERS)
        together = sum(first[user].replica == second[user].replica for user in USERS)
    assert together / len(USERS) > 0.8


HURRIED = "from completion_server.admission.settings import AdmissionSettings as A; A.first_request_s = 0.5"
"""Run at the start of each server: a stream without a request ends after half a second, not after a minute."""


def test_streams_that_servers_end_are_no_failures_of_the_replicas(
    envoy_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HURRIED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def end_all(site: Site) -> None:
        async with NamedUsers(site.envoy.address) as callers:
            streams = await callers.open_streams(USERS[:60])
            for stream in streams.values():
                assert await asyncio.wait_for(stream.call.code(), 10) is grpc.StatusCode.UNAVAILABLE
                assert "SESSION_ENDED" in str(await stream.call.trailing_metadata())
            assert len({await callers.complete(names_of(user)) for user in USERS[:60]}) == 2

    with run_site(2) as site:
        asyncio.run(end_all(site))
        assert site.envoy.stat("cluster.replicas.outlier_detection.ejections_enforced_total") == 0
        assert site.envoy.num_healthy() == 2


def test_an_envoy_that_drains_says_so_and_keeps_its_streams(envoy_binary: str) -> None:
    async def drain(site: Site) -> None:
        async with NamedUsers(site.envoy.address) as callers:
            stream = await callers.open_stream(names_of("ada"))
            url = f"http://{site.envoy.admin}/drain_listeners?graceful"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(urllib.request.Request(url, method="POST"), timeout=10) as answer:
                assert answer.status == 200
            sequence = 0
            while not site.envoy.stat("http.editors.downstream_cx_drain_close") and sequence < 100:
                sequence += 1
                await callers.complete(names_of("ada"), sequence=sequence)
                await asyncio.sleep(0.05)
            assert site.envoy.stat("http.editors.downstream_cx_drain_close") > 0
            assert not stream.call.done()

    with run_site(1, drain_s=2) as site:
        asyncio.run(drain(site))
