"""Several replicas as one: real servers with scripted engines, of which one refuses, drains, is lost or comes back."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from completion.v1 import completion_pb2 as pb
from completion_client import (
    ConnectionLostError,
    DeadlineExceededError,
    InvalidArgumentError,
    Regions,
    RegionSettings,
    ReplicaSet,
    ResourceExhaustedError,
    RoutingSettings,
    ServiceError,
    SessionSettings,
    UnavailableError,
)
from completion_client.endpoint import Endpoint
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.server import ENDLESS, RunningServer, endless_config, endless_engine, eventually, run_server

REQUEST = pb.CompleteRequest(prefix="x = ")
DEAD = "127.0.0.1:1"


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Losses:
    errors: list[ServiceError] = field(default_factory=list)
    num_back: int = 0

    def on_lost(self, error: ServiceError) -> None:
        self.errors.append(error)

    def on_reconnected(self, away_s: float) -> None:
        self.num_back += 1


def engine() -> ScriptedEngine:
    def script(request: GenerationRequest) -> Iterable[str]:
        return (f" w{i}" for i in range(ENDLESS)) if request.max_tokens == ENDLESS else ("alpha", " beta", "\n")

    return endless_engine(script, ServiceTimes(decode_base_s=0.001))


def given_order(endpoints: Iterable[Endpoint], _user: str, _tenant: str) -> tuple[Endpoint, ...]:
    """Return the order of the list, so that a test knows who is first."""
    return tuple(endpoints)


@asynccontextmanager
async def replica_set(*addresses: str, clock: Clock | None = None) -> AsyncIterator[ReplicaSet]:
    """Yield the replicas of one region, however busy the machine is."""
    one_region = RegionSettings(tier_margin_ms=60_000)
    async with Regions(",".join(addresses), settings=one_region, now=clock or Clock()) as regions:
        yield ReplicaSet(regions, user="ada", settings=RoutingSettings(), order=given_order)


def num_accepted(server: RunningServer) -> float:
    return server.count("completion_requests_total", outcome="stop", trigger="automatic", shed_reason="")


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[list[RunningServer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(run_server(endless_config(), engine)) for _ in range(2)]


@asynccontextmanager
async def live_request(server: RunningServer) -> AsyncIterator[None]:
    """Keep a server from ending its drain, by a block that the script never leaves."""
    request = pb.CompleteRequest(session_id="s", sequence=1, prefix="x = ", mode=pb.MODE_MULTI_LINE, max_tokens=ENDLESS)
    call = server.stub.Complete(request)
    await anext(aiter(call))
    yield
    call.cancel()


def addresses_of(servers: list[RunningServer]) -> list[str]:
    return [each.ready.address for each in servers]


async def test_the_first_replica_answers(servers: list[RunningServer]) -> None:
    async with replica_set(*addresses_of(servers)) as replicas:
        completions = [await replicas.complete(REQUEST) for _ in range(3)]
    assert [each.text for each in completions] == ["alpha beta"] * 3
    assert [num_accepted(each) for each in servers] == [3, 0]


async def test_a_replica_that_is_away_is_passed_over_and_comes_back(servers: list[RunningServer]) -> None:
    clock, address = Clock(), servers[0].ready.address
    async with replica_set(DEAD, address, clock=clock) as replicas:
        assert (await replicas.complete(REQUEST)).text == "alpha beta"
        assert [each.address for each in replicas.order] == [address, DEAD]
        assert (await replicas.complete(REQUEST)).finish_reason == "stop"
    async with replica_set(DEAD, clock=clock) as alone:
        with pytest.raises(ConnectionLostError, match="no connection"):
            await alone.complete(REQUEST)


async def test_a_timeout_is_for_all_replicas_together() -> None:
    """A replica that accepts no connection and refuses none: the system holds the connections that nobody accepts."""
    with socket.socket() as one, socket.socket() as two:
        addresses = []
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
            each.listen(1)
            addresses.append(f"127.0.0.1:{each.getsockname()[1]}")
        async with replica_set(*addresses) as replicas:
            with pytest.raises((ConnectionLostError, DeadlineExceededError)):
                async with asyncio.timeout(1.5):
                    await replicas.complete(REQUEST, timeout_s=0.2)


async def test_a_draining_replica_is_left_and_forgiven(servers: list[RunningServer]) -> None:
    clock = Clock()
    async with replica_set(*addresses_of(servers), clock=clock) as replicas, live_request(servers[0]):
        servers[0].app.drain(30.0)
        await eventually(lambda: servers[0].app.is_draining)
        assert (await replicas.complete(REQUEST)).text == "alpha beta"
        assert num_accepted(servers[1]) == 1


async def test_a_request_that_a_draining_replica_sheds_is_answered_by_the_next(servers: list[RunningServer]) -> None:
    losses = Losses()
    quick = SessionSettings(backoff_min_s=0.001, backoff_max_s=0.01)
    async with (
        live_request(servers[0]),
        replica_set(*addresses_of(servers)) as replicas,
        replicas.session(settings=quick, listener=losses) as session,
    ):
        await session.complete(REQUEST)
        servers[0].app.drain(30.0)
        await eventually(lambda: servers[0].app.is_draining)
        for _ in range(2):
            assert (await session.complete(REQUEST)).finish_reason == "stop"
        assert num_accepted(servers[1]) == 2
    assert losses.errors == []


async def test_a_request_that_is_the_callers_fault_is_not_repeated(servers: list[RunningServer]) -> None:
    async with replica_set(*addresses_of(servers)) as replicas:
        with pytest.raises(InvalidArgumentError):
            await replicas.complete(pb.CompleteRequest(prefix="x = ", temperature=-1.0))
        await replicas.complete(REQUEST)
    assert [num_accepted(each) for each in servers] == [1, 0]


async def test_a_session_goes_to_the_next_replica_when_one_is_full() -> None:
    async with AsyncExitStack() as stack:
        full = await stack.enter_async_context(run_server(endless_config("admission.max_sessions=1"), engine))
        other = await stack.enter_async_context(run_server(endless_config(), engine))
        clock, losses = Clock(), Losses()
        replicas = await stack.enter_async_context(replica_set(*addresses_of([full, other]), clock=clock))
        first = await stack.enter_async_context(replicas.session())
        assert (await first.complete(REQUEST)).finish_reason == "stop"
        quick = SessionSettings(backoff_min_s=0.001, backoff_max_s=0.01)
        second = await stack.enter_async_context(replicas.session(settings=quick, listener=losses))
        await eventually(lambda: losses.num_back == 1)
        assert isinstance(losses.errors[0], ResourceExhaustedError)
        assert losses.errors[0].reason == "SERVER_FULL"
        assert (await second.complete(REQUEST)).finish_reason == "stop"
        assert [num_accepted(each) for each in (full, other)] == [1, 1]
        # Single calls pass it over, too, until its time is up.
        await replicas.complete(REQUEST)
        assert num_accepted(other) == 2
        clock.now_s = 60.0
        await replicas.complete(REQUEST)
        assert num_accepted(full) == 2


async def test_a_limit_of_the_user_is_no_reason_to_go_elsewhere() -> None:
    async with AsyncExitStack() as stack:
        limited = endless_config("admission.max_sessions_per_user=1", "admission.retry_after_ms=10")
        pair = [await stack.enter_async_context(run_server(limited, engine)) for _ in range(2)]
        replicas = await stack.enter_async_context(replica_set(*addresses_of(pair)))
        first = await stack.enter_async_context(replicas.session())
        await first.complete(REQUEST)
        losses = Losses()
        quick = SessionSettings(backoff_min_s=0.001, backoff_max_s=0.01)
        await stack.enter_async_context(replicas.session(settings=quick, listener=losses))
        await eventually(lambda: len(losses.errors) >= 3)
        assert {(type(error), error.reason) for error in losses.errors} == {(ResourceExhaustedError, "")}
        assert pair[1].count("completion_live_sessions") == 0


async def test_a_session_survives_the_loss_of_its_replica_and_returns(servers: list[RunningServer]) -> None:
    clock, losses = Clock(), Losses()
    quick = SessionSettings(backoff_min_s=0.001, backoff_max_s=0.01)
    async with (
        replica_set(*addresses_of(servers), clock=clock) as replicas,
        replicas.session(settings=quick, listener=losses) as session,
    ):
        await session.complete(REQUEST)
        servers[0].app.drain(0.0)
        await eventually(lambda: losses.num_back == 1)
        assert isinstance(losses.errors[0], UnavailableError)
        assert (await session.complete(REQUEST)).finish_reason == "stop"
        assert [num_accepted(each) for each in servers] == [1, 1]


async def test_a_dropped_connection_is_not_held_against_the_replica(servers: list[RunningServer]) -> None:
    losses = Losses()
    quick = SessionSettings(backoff_min_s=0.001, backoff_max_s=0.01)
    async with (
        replica_set(*addresses_of(servers)) as replicas,
        replicas.session(settings=quick, listener=losses) as session,
    ):
        await session.complete(REQUEST)
        session.reconnect_nowait()
        await eventually(lambda: losses.num_back == 1)
        await session.complete(REQUEST)
    assert [num_accepted(each) for each in servers] == [2, 0]


async def test_no_session_without_any_replica() -> None:
    async with replica_set(DEAD, "127.0.0.1:2") as replicas:
        with pytest.raises(ConnectionLostError, match="no connection"):
            async with replicas.session():
                pass


async def test_a_user_has_one_order_and_users_without_a_name_have_their_own() -> None:
    addresses = ",".join(f"10.0.0.{number}:1" for number in range(8))
    orders = {tuple(ReplicaSet(addresses, user="ada", tenant="t").order) for _ in range(5)}
    assert len(orders) == 1
    assert len({ReplicaSet(addresses).order[0] for _ in range(40)}) > 3
