"""Streams that occupy places, flood, or open and close fast: others are served, and no memory is left in use."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.engine.scripted.engine import ServiceTimes
from loadtest.bench.attacks.http2 import Http2Connection, Stream, framed
from loadtest.bench.runner.server import ServerProcess
from tests.attack.conftest import MIB, attacked, engine
from tests.support.server import (
    ENDLESS,
    ask,
    endless_config,
    endless_engine,
    eventually,
    make_config,
    next_event,
    request,
    run_server,
)

pytestmark = pytest.mark.serial

CONFIG = Path(__file__).parents[2] / "deploy" / "local" / "server.toml"
EXHAUSTED, UNAVAILABLE = 8, 14


def named(user: str) -> tuple[tuple[str, str], ...]:
    return (("x-user-id", user),)


@pytest.mark.parametrize(
    ("key", "users"), [("max_sessions_per_user", ("ann", "ann")), ("users_per_peer", ("ann", "bob"))]
)
async def test_idle_sessions_do_not_exhaust_the_sessions_of_others(key: str, users: tuple[str, str]) -> None:
    async with run_server(make_config(f"admission.{key}=1", "admission.sessions_per_user_of_peer=1"), engine) as server:
        first = server.stub.Session(metadata=named(users[0]))
        await first.initial_metadata()
        second = server.stub.Session(metadata=named(users[1]))
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"admission.{key}" in await second.details()
        async with await Http2Connection.open(server.ready.address, "127.0.0.2") as connection:
            other = connection.call("Session", named("eve"))
            await other.send(framed(pb.SessionRequest(complete=request()).SerializeToString()), ends=True)
            assert await other.ended(20)
            assert other.status == 0
            first.cancel()
            await eventually(lambda: server.count("completion_live_sessions") == 0)
            third = server.stub.Session(metadata=named(users[1]))
            await third.initial_metadata()
            third.cancel()


async def test_a_stream_that_is_old_answers_and_ends_before_its_connection_is_cut() -> None:
    slow = endless_engine(lambda _request: (f" w{i}" for i in range(ENDLESS)), ServiceTimes(decode_base_s=0.01))
    ages = ("server.max_connection_age_s=0.2", "server.max_session_age_s=0.4", "server.max_connection_age_grace_s=20")
    async with run_server(endless_config(*ages), lambda: slow) as server:
        call = server.stub.Session()
        await call.write(pb.SessionRequest(complete=request(max_tokens=100)))  # a second's worth
        while not (await next_event(call)).HasField("end"):
            pass
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert " s old" in await call.details()
        again = server.stub.Session()  # over a new connection
        await again.initial_metadata()
        again.cancel()


async def test_a_flood_on_one_stream_is_answered_or_ended_and_others_are_served() -> None:
    async with attacked(source="127.0.0.1") as (server, connection):
        stream = connection.call("Session", named("flood"))
        flooding = asyncio.create_task(flood(stream))
        for sequence in range(1, 6):
            assert (await ask(server.stub, request(sequence=sequence, session_id="other"))).reason == "stop"
        await flooding
        assert await stream.ended(30)
        assert stream.status in {0, EXHAUSTED}
        await eventually(lambda: server.count("completion_live_sessions") == 0)
        assert server.count("completion_running_requests") == 0


async def flood(stream: Stream) -> None:
    for sequence in range(1, 3_000):
        message = pb.SessionRequest(complete=request("x = 1\n" * 100, sequence=sequence)).SerializeToString()
        if not await stream.send(framed(message)):
            return
    await stream.send(b"", ends=True)


@pytest.fixture(scope="module")
def server_process() -> Iterator[ServerProcess]:
    """A server in its own process, so that its memory can be measured."""
    overrides = ("engine.kind=scripted", "engine.scripted_times=instant", "admission.user_requests_per_s=0")
    server = ServerProcess(CONFIG, overrides)
    yield server
    server.stop()


def rss(server: ServerProcess) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


async def reset_calls(connection: Http2Connection, num: int) -> None:
    data = framed(request().SerializeToString())
    for number in range(num):
        stream = connection.call("Complete")
        await stream.send(data, ends=True)
        stream.reset()
        if number % 100 == 0:
            await asyncio.sleep(0)


async def is_served(connection: Http2Connection) -> bool:
    stream = connection.call("Complete")
    await stream.send(framed(request().SerializeToString()), ends=True)
    return await stream.ended(60) and stream.status == 0


@pytest.mark.parametrize("num", [4_000, pytest.param(20_000, marks=pytest.mark.large)])
async def test_calls_that_are_reset_at_once_leave_no_memory(server_process: ServerProcess, num: int) -> None:
    before = rss(server_process)
    async with await Http2Connection.open(server_process.ready["address"], "127.0.0.1") as connection:
        await reset_calls(connection, num)
        async with asyncio.timeout(60):
            while not await is_served(connection):
                pass  # the server refuses calls of the connection until it has dealt with the resets
        assert rss(server_process) - before < 32 * MIB


@pytest.mark.parametrize("num", [600, pytest.param(11_000, marks=pytest.mark.large)])
async def test_requests_and_sessions_leave_no_memory(server_process: ServerProcess, num: int) -> None:
    async with grpc.aio.insecure_channel(server_process.ready["address"]) as channel:
        stub = CompletionServiceStub(channel)
        await come_and_go(stub, num // 2, "first")  # allocates the memory that is allocated once
        before = rss(server_process)
        await come_and_go(stub, num, "then")
        assert rss(server_process) - before < 16 * MIB


async def come_and_go(stub: CompletionServiceStub, num: int, name: str) -> None:
    """Make a request and a session for each number, every one as a new user with a file of its own."""
    for number in range(num):
        message = request(
            "x = 1\n" * 300 + f"y{number} = ", session_id=f"{name}-{number}", document_uri=f"{name}{number}"
        )
        answered = await ask(stub, message, metadata=named(f"{name}-{number}"))
        assert answered.code is grpc.StatusCode.OK
        call = stub.Session(metadata=named(f"{name}-{number}"))
        await call.write(pb.SessionRequest(complete=message))
        while isinstance(response := await next_event(call), pb.SessionResponse) and not response.HasField("end"):
            pass
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
