"""Users of a process who come and go share connections, and leave none behind that nobody uses."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replica_fakes import FakeReplica, fake_replicas

from completion.v1 import completion_pb2 as pb
from completion_client import ConnectionLostError, Endpoint, Regions, RegionSettings, ReplicaSet
from completion_client.regions.leases import ConnectionNumbers
from tests.support.fault_proxy import FaultProxy
from tests.support.server import eventually

REQUEST = pb.CompleteRequest(prefix="x = ")
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
        present: deque[ReplicaSet] = deque()
        for number in range(1000):
            if len(present) == regions.settings.users_per_connection:
                await present.popleft().aclose()
            view = ReplicaSet(regions, user=f"user {number}")
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
            ReplicaSet(regions, user="ada", connection=number, order=lambda found, *_: tuple(found))
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
    numbers, taken = ConnectionNumbers(limit), []
    most = 0
    for step in steps:
        users = Counter(taken)
        match step:
            case "take":
                found = numbers.take()
                assert users[found] < limit
                assert all(users[lower] >= limit for lower in range(found))
                taken.append(found)
            case int():
                assert numbers.take(step) == step
                taken.append(step)
            case float() if taken:
                number = taken.pop(int(step * len(taken)))
                assert numbers.give_back(number) == (number not in taken)
        assert numbers.in_use == sorted(set(taken))
        most = max(most, len(taken))
    if all(not isinstance(step, int) for step in steps):
        assert all(number <= max(0, most - 1) // limit for number in taken)
