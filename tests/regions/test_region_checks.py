"""Health checks of endpoints: callers that share one, and errors that must not end the watch of an endpoint."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from completion_client import ConnectionLostError, Endpoint, Health, Regions, RegionSettings
from completion_client.connections import Connection
from tests.support.cancels import cancel_and_wait
from tests.support.replica_fakes import FakeReplica, fake_replicas
from tests.support.server import eventually

LONG_S = 30.0
PATIENT = RegionSettings(check_interval_s=LONG_S, recheck_s=LONG_S, check_timeout_s=LONG_S)
QUICK = RegionSettings(check_interval_s=0.02, recheck_s=0.02, return_spread_s=0.0)


@asynccontextmanager
async def two_servers(settings: RegionSettings = PATIENT) -> AsyncIterator[tuple[list[FakeReplica], Regions]]:
    """Yield two servers, and the regions that have checked them."""
    servers = [FakeReplica(), FakeReplica()]
    async with fake_replicas(*servers), Regions([each.endpoint for each in servers], settings=settings) as regions:
        await eventually(lambda: all(each.num_checks >= 3 for each in servers))
        # The server has counted the last check, and its answer may be on its way: the next caller would share it.
        await eventually(lambda: not any(regions.connections.get(each).is_checking for each in regions.endpoints))
        yield servers, regions


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, FakeReplica]]:
    """Yield a connection that has answered a check, and its server."""
    server = FakeReplica()
    async with fake_replicas(server):
        connection = Connection(server.endpoint, server.endpoint.open_aio_channel())
        assert (await connection.check(LONG_S)).round_trip_s is not None
        yield connection, server
        connection.drop_nowait()


@pytest.mark.parametrize("first_s", [0.1, LONG_S], ids=["impatient first", "patient first"])
async def test_callers_share_a_health_check_but_not_its_limit(first_s: float) -> None:
    async with connected() as (connection, server):
        server.may_check.clear()
        limits_s = [first_s, LONG_S, 0.1]
        tasks = []
        for limit_s in limits_s:
            tasks.append(asyncio.create_task(connection.check(limit_s)))
            await eventually(lambda: server.num_checks == 2)
        for limit_s, task in zip(limits_s, tasks, strict=True):
            if limit_s < LONG_S:
                assert (await task).problem == "no answer to a health check within 100 ms"
        heard_at_s = connection.heard_at_s
        server.may_check.set()
        patient = await tasks[1]
        assert patient.round_trip_s is not None
        assert not patient.problem
        assert server.num_checks == 2
        assert connection.heard_at_s > heard_at_s


async def test_the_late_answer_to_a_check_that_no_caller_waits_for_counts_as_heard() -> None:
    async with connected() as (connection, server):
        server.may_check.clear()
        waiting = asyncio.create_task(connection.check(LONG_S))
        await eventually(lambda: server.num_checks == 2)
        await cancel_and_wait(waiting)
        heard_at_s = connection.heard_at_s
        server.may_check.set()
        await eventually(lambda: connection.heard_at_s > heard_at_s)


async def test_a_request_with_little_time_does_not_shorten_the_check_that_decides() -> None:
    async with two_servers() as (servers, regions):
        near, endpoint = servers[0], regions.endpoints[0]
        num_checks = near.num_checks
        near.may_check.clear()
        loop = asyncio.get_running_loop()
        connection = regions.connections.get(endpoint)
        asking = asyncio.create_task(regions.alive_at_s(connection, loop.time(), 0.1))
        await eventually(lambda: near.num_checks == num_checks + 1)
        regions.lost(connection, "a stream was lost")
        assert regions.state(endpoint).health is Health.SUSPECT
        assert await asking is None
        await asyncio.sleep(0.05)
        assert regions.state(endpoint).health is Health.SUSPECT, "the patient check has not ended"
        near.may_check.set()
        await eventually(lambda: regions.state(endpoint).health is Health.USABLE)


async def test_a_server_whose_connection_gets_no_new_call_is_asked_on_another_and_not_silent() -> None:
    async with two_servers() as (_, regions):
        regions.connections.lease(1)
        connection = await regions.connected(regions.endpoints[0], 1, LONG_S)
        regions.connections.release(1)
        assert not regions.connections.holds(connection)
        now_s = asyncio.get_running_loop().time()
        heard_at_s = await regions.alive_at_s(connection, now_s, LONG_S)
        assert heard_at_s is not None
        assert heard_at_s > now_s


@pytest.mark.parametrize("error", [ConnectionLostError("key: can't be read"), RuntimeError("an error of the program")])
async def test_an_error_while_connections_are_warmed_ends_no_watch(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_servers(QUICK) as (servers, regions):
        regions.connections.lease(1)
        connections = regions.connections
        open_one = connections.get

        def get(endpoint: Endpoint, number: int = 0) -> Connection:
            if number:
                raise error
            return open_one(endpoint, number)

        monkeypatch.setattr(connections, "get", get)
        await eventually(lambda: str(error) in caplog.text)
        assert any(each.address in caplog.text for each in servers)
        num_checks = [each.num_checks for each in servers]
        await eventually(lambda: all(each.num_checks > num + 2 for each, num in zip(servers, num_checks, strict=True)))
        assert {each.health for each in regions.states()} == {Health.USABLE}


async def test_the_end_of_a_task_by_an_error_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        raise RuntimeError("an error of the program")

    regions = Regions("127.0.0.1:1,127.0.0.1:2")
    monkeypatch.setattr(regions._watcher, "run", run)
    regions.start_nowait()
    await eventually(lambda: "an error of the program" in caplog.text)
    with pytest.raises(RuntimeError, match="an error of the program"):
        await regions.aclose()
