"""Several replicas as one, and the connections that their users share."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

import completion_client
from completion.v1 import completion_pb2 as pb
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    Endpoint,
    InvalidArgumentError,
    Regions,
    RegionSettings,
    ResourceExhaustedError,
    SessionSettings,
)
from completion_client.connections import Connections
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.fault_proxy import FaultProxy
from tests.support.regions import script
from tests.support.replica_fakes import Clock, FakeReplica, Losses, fake_replicas, view_of
from tests.support.server import RunningServer, endless_config, endless_engine, eventually, run_server

REQUEST = pb.CompleteRequest(prefix="x = ")
DEAD = "127.0.0.1:1"
QUICK = SessionSettings(backoff_min_s=0.001, backoff_max_s=0.01)


def engine() -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.001))


def num_accepted(server: RunningServer) -> float:
    return server.count("completion_requests_total", outcome="stop", trigger="automatic", shed_reason="")


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[list[RunningServer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(run_server(endless_config(), engine)) for _ in range(2)]


def addresses_of(servers: list[RunningServer]) -> list[str]:
    return [each.ready.address for each in servers]


async def test_a_replica_that_is_away_is_passed_over_and_comes_back(servers: list[RunningServer]) -> None:
    clock, address = Clock(), servers[0].ready.address
    async with view_of(DEAD, address, clock=clock) as replicas:
        assert (await replicas.complete(REQUEST)).text == "alpha beta"
        assert [each.address for each in replicas.order] == [address, DEAD]
        assert (await replicas.complete(REQUEST)).finish_reason == "stop"
    async with view_of(DEAD, clock=clock) as alone:
        with pytest.raises(ConnectionLostError, match="no connection"):
            await alone.complete(REQUEST)
        with pytest.raises(ConnectionLostError, match="no connection"):
            async with alone.session():
                pass


async def test_a_request_that_is_the_callers_fault_is_not_repeated(servers: list[RunningServer]) -> None:
    async with view_of(*addresses_of(servers)) as replicas:
        with pytest.raises(InvalidArgumentError):
            await replicas.complete(pb.CompleteRequest(prefix="x = ", temperature=-1.0))
        await replicas.complete(REQUEST)
    assert [num_accepted(each) for each in servers] == [1, 0]


async def test_a_session_goes_to_the_next_replica_when_one_is_full() -> None:
    async with AsyncExitStack() as stack:
        full = await stack.enter_async_context(run_server(endless_config("admission.max_sessions=1"), engine))
        other = await stack.enter_async_context(run_server(endless_config(), engine))
        clock, losses = Clock(), Losses()
        replicas = await stack.enter_async_context(view_of(*addresses_of([full, other]), clock=clock))
        first = await stack.enter_async_context(replicas.session())
        assert (await first.complete(REQUEST)).finish_reason == "stop"
        second = await stack.enter_async_context(replicas.session(settings=QUICK, listener=losses))
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
        replicas = await stack.enter_async_context(view_of(*addresses_of(pair)))
        first = await stack.enter_async_context(replicas.session())
        await first.complete(REQUEST)
        losses = Losses()
        await stack.enter_async_context(replicas.session(settings=QUICK, listener=losses))
        await eventually(lambda: len(losses.errors) >= 3)
        assert {(type(error), error.reason) for error in losses.errors} == {(ResourceExhaustedError, "TOO_MANY_OPEN")}
        assert pair[1].count("completion_live_sessions") == 0


async def test_a_dropped_connection_is_not_held_against_the_replica(servers: list[RunningServer]) -> None:
    losses = Losses()
    async with (
        view_of(*addresses_of(servers)) as replicas,
        replicas.session(settings=QUICK, listener=losses) as session,
    ):
        await session.complete(REQUEST)
        session.reconnect_nowait()
        await eventually(lambda: losses.num_back == 1)
        await session.complete(REQUEST)
    assert [num_accepted(each) for each in servers] == [2, 0]


def test_a_client_of_several_servers_has_its_older_name() -> None:
    assert completion_client.ReplicaSet is CompletionClient


async def test_a_user_has_one_order_and_users_without_a_name_have_their_own() -> None:
    addresses = ",".join(f"10.0.0.{number}:1" for number in range(8))
    orders = {tuple(CompletionClient(addresses, user="ada", tenant="t").order) for _ in range(5)}
    assert len(orders) == 1
    assert len({CompletionClient(addresses).order[0] for _ in range(40)}) > 3


BUSY = RegionSettings(tier_margin_ms=60_000, check_interval_s=0.02, silence_min_s=10.0, silence_max_s=10.0)
"""Checks and warms the connections again and again."""


@asynccontextmanager
async def shared_regions(
    *replicas: FakeReplica, settings: RegionSettings = BUSY
) -> AsyncIterator[tuple[Regions, list[FaultProxy]]]:
    """Yield the regions that users share, and the proxies that count the connections to each server."""
    async with fake_replicas(*replicas), AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(each.address)) for each in replicas]
        regions = await stack.enter_async_context(
            Regions([Endpoint(each.address) for each in proxies], settings=settings)
        )
        await eventually(lambda: all(each.round_trip_ms is not None for each in regions.states()))
        yield regions, proxies


async def test_a_thousand_users_who_come_and_go_need_one_connection_to_each_server() -> None:
    async with shared_regions(FakeReplica(), FakeReplica()) as (regions, proxies):
        present: deque[CompletionClient] = deque()
        for number in range(1000):
            if len(present) == regions.settings.users_per_connection:
                await present.popleft().aclose()
            view = CompletionClient(regions, user=f"user {number}")
            present.append(view)
            if number % 10 == 0:
                assert (await view.complete(REQUEST)).text == "text"
        assert [each.num_made for each in proxies] == [1, 1]
        for view in present:
            await view.aclose()


async def test_the_connections_of_a_number_without_users_are_dropped_after_their_calls() -> None:
    replica = FakeReplica()
    async with shared_regions(replica, FakeReplica()) as (regions, proxies):
        stays, leaves = (
            CompletionClient(regions, user="ada", connection=number, order=lambda found, *_: tuple(found))
            for number in (0, 7)
        )
        await eventually(lambda: [each.num_open for each in proxies] == [2, 2])
        replica.may_answer.clear()
        asking = [asyncio.create_task(each.complete(REQUEST)) for each in (stays, leaves)]
        await eventually(lambda: len(replica.metadata) == 2)
        await leaves.aclose()
        await leaves.aclose()
        await eventually(lambda: proxies[1].num_open == 1)
        replica.may_answer.set()
        assert [(await each).text for each in asking] == ["text"] * 2
        await eventually(lambda: proxies[0].num_open == 1)
        assert (await stays.complete(REQUEST)).text == "text"
        with pytest.raises(ConnectionLostError, match="the client is closed"):
            await leaves.complete(REQUEST)
        assert [each.num_open for each in proxies] == [1, 1]


@given(st.integers(1, 4), st.lists(st.one_of(st.just("take"), st.integers(0, 5), st.floats(0.0, 0.99)), max_size=60))
def test_numbers_are_the_lowest_with_room_and_none_is_left(limit: int, steps: list[str | int | float]) -> None:
    """A step takes any number or a given one, or gives one of those that are taken back."""
    numbers, taken = Connections(users_per_connection=limit), []
    most = 0
    for step in steps:
        users = Counter(taken)
        match step:
            case "take":
                found = numbers.lease()
                assert users[found] < limit
                assert all(users[lower] >= limit for lower in range(found))
                taken.append(found)
            case int():
                assert numbers.lease(step) == step
                taken.append(step)
            case float() if taken:
                numbers.release(taken.pop(int(step * len(taken))))
        most = max(most, len(taken))
    if all(not isinstance(step, int) for step in steps):
        assert all(number <= max(0, most - 1) // limit for number in taken)
