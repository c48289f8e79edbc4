"""The scripts of shared limits do the same in Redis and in the double that other tests use."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from completion_server.state.limit_reports import MEET, SHARE
from completion_server.state.redis_store import RedisStore
from tests.support.redis_servers import RedisServer
from tests.support.shared_limits import LimitScripts
from tests.unit.state.stores import running_store

IDS = ("a", "b c", "d")
KEY = "test-limit-scripts"


@pytest_asyncio.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    redis_server.cli("DEL", KEY)
    async with running_store(redis_server.address) as store:
        yield store


async def share(store: RedisStore, double: LimitScripts, me: str, *arguments: float) -> tuple[list[float], list[float]]:
    """Report to Redis and to the double, at the time at which Redis did; return both replies."""
    command = "EVAL", SHARE, 1, KEY, me, *arguments
    reply = await store.call_nowait(*command)
    at, _debt = (await store.call_nowait("HGET", KEY, "debt")).split()
    double.now = float(at)
    return [float(each) for each in reply], [float(each) for each in double.run(*command)]


@pytest.mark.parametrize("seed", range(5))
async def test_rates_are_shared_alike(store: RedisStore, seed: int) -> None:
    draw, double = random.Random(seed), LimitScripts()
    rate, burst = draw.choice([0.5, 20.0, 2000.0]), draw.choice([1.0, 40.0, 8000.0])
    for _ in range(200):
        taken, demand = draw.choice([0.0, 1.0, burst, -burst / 3]), draw.choice([0.0, 0.5, 3.0, 100.0])
        found, expected = await share(
            store, double, draw.choice(IDS), 9.0, rate, burst, burst + 10 * rate, taken, 0, demand, 1 / 3
        )
        assert found == pytest.approx(expected)
        assert (found[0] > 0) == (demand > 0)


async def test_sessions_are_shared_alike(store: RedisStore) -> None:
    draw, double = random.Random(7), LimitScripts()
    for _ in range(100):
        num_open = draw.randrange(5)
        found, expected = await share(store, double, draw.choice(IDS), 60.0, 0.0, 10, 10, 0.0, num_open, num_open, 0.5)
        assert found == pytest.approx(expected)


async def test_a_share_is_forgotten_with_its_replica(store: RedisStore) -> None:
    double = LimitScripts()
    await share(store, double, "a", 1e-6, 20.0, 40.0, 240.0, 10.0, 3, 1.0, 0.5)
    found, expected = await share(store, double, "b", 1e-6, 20.0, 40.0, 240.0, 0.0, 0, 1.0, 0.5)
    assert found == pytest.approx(expected)
    assert found == pytest.approx([1.0, 30.0], abs=1.0), "the sessions went, the debt stayed"


async def test_heartbeats_find_the_same_replicas(store: RedisStore) -> None:
    draw, double = random.Random(1), LimitScripts()
    for _ in range(60):
        command = "EVAL", MEET, 1, KEY, (me := draw.choice(IDS)), draw.choice(["p", "q", ""]), 600.0
        found = await store.call_nowait(*command)
        kept = await store.call_nowait("HGET", KEY, me)
        expected = double.run(*command)
        assert ids(found) == ids(expected)
        assert all(0 <= float(age) < 60 for _name, _process, age in found)
        assert (kept is None) == (me not in double.heartbeats)


async def test_an_old_heartbeat_is_forgotten(store: RedisStore) -> None:
    assert await store.call_nowait("EVAL", MEET, 1, KEY, "a", "p", 600.0) == []
    assert await store.call_nowait("EVAL", MEET, 1, KEY, "b", "p", 0.0) == []
    assert await store.call_nowait("HGET", KEY, "a") is None


async def test_every_key_expires(store: RedisStore) -> None:
    lives_s = []
    for script, *arguments in (
        (MEET, "a", "p", 600.0),
        (SHARE, "a", 9.0, 20.0, 40, 240.0, 1.0, 0, 1.0, 1.0),
        (SHARE, "a", 60.0, 0.0, 10, 10, 0.0, 1, 1.0, 1.0),
    ):
        await store.call_nowait("DEL", KEY)
        await store.call_nowait("EVAL", script, 1, KEY, *arguments)
        lives_s.append(await store.call_nowait("TTL", KEY))
    assert lives_s == pytest.approx([600, 21, 60], abs=5)


def ids(reply: list[Any]) -> list[Any]:
    """Return a heartbeat's reply without the ages, in order."""
    return sorted((name, process) for name, process, _age in reply)
