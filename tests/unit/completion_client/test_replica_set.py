"""Several replicas as one, and the connections that their users share."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.support.replica_fakes import ONE_REGION, Clock, FakeReplica, Losses, fake_replicas, view_of
from tests.support.server import RunningServer, endless_config, endless_engine, eventually, run_server

REQUEST = pb.CompleteRequest(prefix="x = ")
DEAD = "127.0.0.1:1"
QUICK = SessionSettings(backoff_min_s=0.001, backoff_max_s=0.01)
SOON = replace(ONE_REGION, move_spread_s=0.05)
BUSY = RegionSettings(tier_margin_ms=60_000, check_interval_s=0.02, silence_min_s=10.0, silence_max_s=10.0)
"""Checks the connections again and again."""


def engine() -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.001))


def num_accepted(server: RunningServer) -> float:
    return server.count("completion_requests_total", outcome="stop", trigger="automatic", shed_reason="")


@asynccontextmanager
async def two_servers(
    *overrides: str, clock: Clock | None = None
) -> AsyncIterator[tuple[list[RunningServer], CompletionClient]]:
    """Yield two servers, the first with overrides, and the view of a user who prefers the first."""
    async with (
        run_server(endless_config(*overrides), engine) as first,
        run_server(endless_config(), engine) as second,
        view_of(first.ready.address, second.ready.address, clock=clock, settings=SOON) as view,
    ):
        yield [first, second], view


async def test_a_replica_that_is_away_is_passed_over_and_a_lone_one_is_named() -> None:
    replica = FakeReplica()
    async with fake_replicas(replica):
        async with view_of(DEAD, replica.address) as view:
            assert (await view.complete(REQUEST)).address == replica.address
            assert [each.address for each in view.order] == [replica.address, DEAD]
        async with view_of(DEAD) as alone:
            with pytest.raises(ConnectionLostError, match=f"no connection to {DEAD}"):
                await alone.complete(REQUEST)
            with pytest.raises(ConnectionLostError, match=f"no connection to {DEAD}"):
                async with alone.session():
                    pass


async def test_a_session_goes_to_the_next_replica_when_one_is_full() -> None:
    clock, losses = Clock(), Losses()
    async with (
        two_servers("admission.max_sessions=1", clock=clock) as (servers, view),
        view.session() as first,
        view.session(settings=QUICK, listener=losses) as second,
    ):
        assert (await first.complete(REQUEST)).finish_reason == "stop"
        await eventually(lambda: losses.num_back == 1)
        assert isinstance(losses.errors[0], ResourceExhaustedError)
        assert losses.errors[0].reason == "SERVER_FULL"
        assert (await second.complete(REQUEST)).finish_reason == "stop"
        assert [num_accepted(each) for each in servers] == [1, 1]
        for clock.now_s, expected in ((0.0, [1, 2]), (60.0, [2, 2])):  # single calls pass it over for a time, too
            await view.complete(REQUEST)
            assert [num_accepted(each) for each in servers] == expected


async def test_the_callers_own_fault_limit_and_reconnect_are_no_reason_to_go_elsewhere() -> None:
    limits = ("admission.max_sessions_per_user=1", "admission.retry_after_ms=10")
    losses = Losses()
    async with (
        two_servers(*limits) as (servers, view),
        view.session(settings=QUICK, listener=losses) as session,
    ):
        await session.complete(REQUEST)
        with pytest.raises(InvalidArgumentError):
            await view.complete(pb.CompleteRequest(prefix="x = ", temperature=-1.0))
        async with view.session(settings=QUICK, listener=(other := Losses())):
            await eventually(lambda: len(other.errors) >= 3)
            assert {(type(each), each.reason) for each in other.errors} == {(ResourceExhaustedError, "TOO_MANY_OPEN")}
        session.reconnect_nowait()
        await eventually(lambda: losses.num_back == 1)
        await session.complete(REQUEST)
        await view.complete(REQUEST)
        assert [num_accepted(each) for each in servers] == [3, 0]
        assert servers[1].count("completion_live_sessions") == 0


def test_a_user_has_one_order_and_users_without_a_name_have_their_own() -> None:
    addresses = ",".join(f"10.0.0.{number}:1" for number in range(8))
    assert len({tuple(CompletionClient(addresses, user="ada", tenant="t").order) for _ in range(5)}) == 1
    assert len({CompletionClient(addresses).order[0] for _ in range(40)}) > 3


@asynccontextmanager
async def shared_regions(*replicas: FakeReplica) -> AsyncIterator[tuple[Regions, list[FaultProxy]]]:
    """Yield the regions that users share, and the proxies that count the connections to each server."""
    async with fake_replicas(*replicas), AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(each.address)) for each in replicas]
        endpoints = [Endpoint(each.address) for each in proxies]
        regions = await stack.enter_async_context(Regions(endpoints, settings=BUSY))
        await eventually(lambda: all(each.round_trip_ms is not None for each in regions.states()))
        yield regions, proxies


async def test_users_who_come_and_go_need_one_connection_to_each_server() -> None:
    async with shared_regions(FakeReplica(), FakeReplica()) as (regions, proxies):
        present: deque[CompletionClient] = deque()
        for number in range(200):
            if len(present) == regions.settings.users_per_connection:
                await present.popleft().aclose()
            present.append(CompletionClient(regions, user=f"user {number}"))
            if number % 10 == 0:
                assert (await present[-1].complete(REQUEST)).text == "text"
        assert [each.num_made for each in proxies] == [1, 1]


async def test_the_connections_of_a_number_without_users_are_dropped_after_their_calls() -> None:
    replica = FakeReplica()
    async with shared_regions(replica, FakeReplica()) as (regions, proxies):
        stays, leaves = (
            CompletionClient(regions, user="ada", connection=number, order=lambda found, *_: tuple(found))
            for number in (0, 7)
        )
        replica.may_answer.clear()
        asking = [asyncio.create_task(each.complete(REQUEST)) for each in (stays, leaves)]
        await eventually(lambda: len(replica.metadata) == 2)
        assert proxies[0].num_open == 2
        await leaves.aclose()
        await leaves.aclose()
        replica.may_answer.set()
        assert [(await each).text for each in asking] == ["text"] * 2
        await eventually(lambda: proxies[0].num_open == 1)
        assert (await stays.complete(REQUEST)).text == "text"
        with pytest.raises(ConnectionLostError, match="the client is closed"):
            await leaves.complete(REQUEST)


@given(st.integers(1, 4), st.lists(st.one_of(st.just("take"), st.floats(0.0, 0.99)), max_size=40))
def test_numbers_are_the_lowest_with_room(limit: int, steps: list[str | float]) -> None:
    """A step takes a number, or gives one of those back that are taken."""
    numbers, taken = Connections(users_per_connection=limit), list[int]()
    for step in steps:
        users = Counter(taken)
        if isinstance(step, str):
            taken.append(numbers.lease())
            assert users[taken[-1]] < limit
            assert all(users[lower] >= limit for lower in range(taken[-1]))
        elif taken:
            numbers.release(taken.pop(int(step * len(taken))))
