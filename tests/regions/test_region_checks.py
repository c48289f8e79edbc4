"""Health checks of endpoints: callers that share one, and errors that must not end the watch of an endpoint."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from completion_client import EndpointError, Regions, RegionSettings
from completion_client.channel_pool import open_channel
from completion_client.endpoint import Endpoint
from completion_client.regions.availability import Health
from completion_client.regions.connections import Connection
from tests.support.cancels import cancel_and_wait
from tests.support.server import eventually

LONG_S = 30.0
QUICK = RegionSettings(check_interval_s=0.02, recheck_s=0.02, return_spread_s=0.0)


@dataclass
class HealthServer(health.aio.HealthServicer):
    """Answers health checks, or holds them back until it is told to answer."""

    address: str = ""
    num_asked: int = 0
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__init__()
        self.answers.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: object) -> health_pb2.HealthCheckResponse:
        self.num_asked += 1
        await self.answers.wait()
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


@asynccontextmanager
async def health_servers(num: int) -> AsyncIterator[list[HealthServer]]:
    async with AsyncExitStack() as stack:
        found = [HealthServer() for _ in range(num)]
        for each in found:
            server = grpc.aio.server()
            health_pb2_grpc.add_HealthServicer_to_server(each, server)
            each.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, None)
            stack.callback(each.answers.set)
        yield found


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, HealthServer]]:
    """Yield a connection that has answered a check, and its server."""
    async with health_servers(1) as (server,):
        endpoint = Endpoint(server.address)
        connection = Connection(endpoint, open_channel(endpoint))
        assert (await connection.check(LONG_S)).round_trip_s is not None
        yield connection, server
        connection.drop_nowait()


@pytest.mark.parametrize("first_s", [0.1, LONG_S], ids=["impatient first", "patient first"])
async def test_callers_share_a_health_check_but_not_its_limit(first_s: float) -> None:
    async with connected() as (connection, server):
        server.answers.clear()
        limits_s = [first_s, LONG_S, 0.1]
        tasks = []
        for limit_s in limits_s:
            tasks.append(asyncio.create_task(connection.check(limit_s)))
            await eventually(lambda: server.num_asked == 2)
        for limit_s, task in zip(limits_s, tasks, strict=True):
            if limit_s < LONG_S:
                assert (await task).problem == "no answer to a health check within 100 ms"
        heard_at_s = connection.heard_at_s
        server.answers.set()
        patient = await tasks[1]
        assert patient.round_trip_s is not None
        assert not patient.problem
        assert server.num_asked == 2
        assert connection.heard_at_s > heard_at_s


async def test_the_late_answer_to_a_check_that_no_caller_waits_for_counts_as_heard() -> None:
    async with connected() as (connection, server):
        server.answers.clear()
        waiting = asyncio.create_task(connection.check(LONG_S))
        await eventually(lambda: server.num_asked == 2)
        await cancel_and_wait(waiting)
        heard_at_s = connection.heard_at_s
        server.answers.set()
        await eventually(lambda: connection.heard_at_s > heard_at_s)


async def test_a_check_that_was_lost_is_not_waited_for_by_the_next_caller() -> None:
    async with connected() as (connection, server):
        server.answers.clear()
        assert (await connection.check(0.05)).round_trip_s is None
        assert server.num_asked == 2
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(connection.check(0.1))
        await eventually(lambda: server.num_asked == 3)
        await waiting


async def test_a_request_with_little_time_does_not_shorten_the_check_that_decides() -> None:
    async with health_servers(2) as servers:
        settings = RegionSettings(check_interval_s=LONG_S, recheck_s=LONG_S, check_timeout_s=LONG_S)
        async with Regions(",".join(each.address for each in servers), settings=settings) as regions:
            await eventually(lambda: all(each.num_asked >= 3 for each in servers))
            near, endpoint = servers[0], regions.endpoints[0]
            num_asked = near.num_asked
            near.answers.clear()
            loop = asyncio.get_running_loop()
            connection = regions.connection(endpoint, 0)
            asking = asyncio.create_task(regions.alive_at_s(connection, loop.time(), 0.1))
            await eventually(lambda: near.num_asked == num_asked + 1)
            regions.lost(connection, "a stream was lost")
            assert regions.state(endpoint).health is Health.SUSPECT
            assert await asking is None
            await asyncio.sleep(0.05)
            assert regions.state(endpoint).health is Health.SUSPECT, "the patient check has not ended"
            near.answers.set()
            await eventually(lambda: regions.state(endpoint).health is Health.USABLE)


async def test_a_server_whose_connection_gets_no_new_call_is_asked_on_another_and_not_silent() -> None:
    async with health_servers(2) as servers:
        settings = RegionSettings(check_interval_s=LONG_S, recheck_s=LONG_S, check_timeout_s=LONG_S)
        async with Regions(",".join(each.address for each in servers), settings=settings) as regions:
            await eventually(lambda: all(each.num_asked >= 3 for each in servers))
            lease = regions.lease(1)
            connection = await regions.connected(regions.endpoints[0], 1, LONG_S)
            lease.release()
            assert not regions.is_current(connection)
            now_s = asyncio.get_running_loop().time()
            heard_at_s = await regions.alive_at_s(connection, now_s, LONG_S)
            assert heard_at_s is not None
            assert heard_at_s > now_s


@pytest.mark.parametrize("error", [EndpointError("key", "can't be read"), RuntimeError("an error of the program")])
async def test_an_error_while_connections_are_warmed_ends_no_watch(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with health_servers(2) as servers:
        regions = Regions(",".join(each.address for each in servers), settings=QUICK)
        async with regions:
            await regions.ready()
            regions.lease(1)
            connections = regions._connections
            open_one = connections.get

            def get(endpoint: Endpoint, number: int = 0) -> Connection:
                if number:
                    raise error
                return open_one(endpoint, number)

            monkeypatch.setattr(connections, "get", get)
            await eventually(lambda: str(error) in caplog.text)
            assert any(each.address in caplog.text for each in servers)
            num_asked = [each.num_asked for each in servers]
            await eventually(
                lambda: all(each.num_asked > num + 2 for each, num in zip(servers, num_asked, strict=True))
            )
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
