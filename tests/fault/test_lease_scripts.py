"""The scripts of shared limits do the same in Redis and in the double that other tests use."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from completion_server.state.lease_scripts import HEARTBEAT, LEASE_RATE, LEASE_SESSIONS
from completion_server.state.redis_store import RedisStore
from tests.support.lease_double import LeaseBudgets
from tests.support.redis_servers import RedisServer
from tests.unit.state.stores import running_store

IDS = ("a", "b c", "d")


KEY = "test-lease-scripts"


@pytest_asyncio.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    redis_server.cli("DEL", KEY)
    async with running_store(redis_server.address) as store:
        yield store


async def redis_s(store: RedisStore) -> float:
    seconds, microseconds = await store.call_nowait("TIME")
    return int(seconds) + int(microseconds) / 1e6


@pytest.mark.parametrize("seed", range(5))
async def test_buckets_are_charged_and_leased_alike(store: RedisStore, seed: int) -> None:
    draw, double, budget = random.Random(seed), LeaseBudgets(), 1_700_000_000.25
    rate, burst, granted = draw.choice([0.5, 20.0, 2000.0]), draw.choice([1, 40, 8000]), 0.0
    for _ in range(200):
        budget += draw.choice([0.0, 0.01, 0.3, 5.0, -0.2, -100.0])
        charge, held = draw.choice([0.0, 1.0, burst, -burst / 3]), draw.choice([0.0, 0.5, burst / 4])
        want = draw.choice([0.0, 1.0, burst / 2])
        arguments = draw.choice(IDS), budget, rate, burst, 10 * rate, charge, held, want, 30.0, 60.0
        command = "EVAL", LEASE_RATE, 1, KEY, *arguments
        reply = [float(each) for each in await store.call_nowait(*command)]
        assert reply == pytest.approx([float(each) for each in double.run(*command)])
        granted += reply[0]
    assert granted > 0


@pytest.mark.parametrize("life_s", [0.005, 0.05, 60.0])
async def test_heartbeats_find_the_same_replicas_and_budget_time(store: RedisStore, life_s: float) -> None:
    draw, double, anchors = random.Random(life_s), LeaseBudgets(), dict.fromkeys(IDS, "0")
    for _ in range(60):
        me = draw.choice(IDS)
        command = "EVAL", HEARTBEAT, 1, KEY, me, anchors[me], life_s, 0.2, draw.choice("pq")
        found = await store.call_nowait(*command)
        double.now = float(found[0])
        expected = double.run(*command)
        assert plain(found) == plain(expected)
        anchors[me] = draw.choice([found[0].decode(), found[0].decode(), "0", anchors[me]])
        await asyncio.sleep(draw.choice([0.0, 0.002, 0.02]))


async def test_a_replica_that_leaves_is_not_counted(store: RedisStore) -> None:
    for me, anchor in (("a", "0"), ("b", "0"), ("a", "-1")):
        last = await store.call_nowait("EVAL", HEARTBEAT, 1, KEY, me, anchor, 2.0, 600.0, "p")
    assert last == []
    found = await store.call_nowait("EVAL", HEARTBEAT, 1, KEY, "b", "0", 2.0, 600.0, "p")
    assert found[3:6] == [1, 0, b"b"]


async def test_sessions_are_leased_alike(store: RedisStore) -> None:
    draw, double = random.Random(7), LeaseBudgets()
    for _ in range(100):
        num_open = draw.randrange(5)
        want, limit = num_open + draw.randrange(3), draw.choice([1, 6, 10])
        command = "EVAL", LEASE_SESSIONS, 1, KEY, draw.choice(IDS), num_open, want, limit, 60
        double.now = await redis_s(store)
        assert await store.call_nowait(*command) == double.run(*command)


async def test_leased_sessions_are_forgotten(store: RedisStore) -> None:
    def lease(me: str, ttl_s: float) -> Any:
        return store.call_nowait("EVAL", LEASE_SESSIONS, 1, KEY, me, 3, 3, 10, ttl_s)

    assert await lease("a", 0.1) == [3, 0]
    assert await lease("b", 60) == [3, 3]
    await asyncio.sleep(0.15)
    assert await lease("b", 60) == [3, 0]


async def test_every_key_expires(store: RedisStore) -> None:
    lives_s = []
    for script, *arguments in (
        (HEARTBEAT, "a", "0", 2.0, 600.0, "p"),
        (LEASE_RATE, "a", 1.0, 20.0, 40, 200.0, 1.0, 0.0, 20.0, 60.0, 90.0),
        (LEASE_SESSIONS, "a", 1, 2, 10, 60.0),
    ):
        await store.call_nowait("DEL", KEY)
        await store.call_nowait("EVAL", script, 1, KEY, *arguments)
        lives_s.append(await store.call_nowait("TTL", KEY))
    assert lives_s == pytest.approx([1200, 90, 60], abs=5)


def plain(reply: list[Any]) -> list[Any]:
    """Return a heartbeat's reply without the order of its members."""
    members = sorted((reply[i], float(reply[i + 1]), reply[i + 2]) for i in range(5, len(reply), 3))
    return [float(reply[0]), float(reply[1]), *reply[2:5], *members]
