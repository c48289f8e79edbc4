"""Requests that are cancelled at random times while their commands to Redis wait, travel or are answered.

The connection stays, and each reply reaches the call that it belongs to.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from completion_server.state.redis_store import RedisStore
from tests.support.fault_proxy import Delay, FaultProxy
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.unit.state.stores import running_store

MAX_OPEN = 500
CANCELLED_SHARE = 0.8
MAX_CANCEL_S = 0.02
REQUEST_DELAY, REPLY_DELAY = Delay(random_s=0.002), Delay(random_s=0.004)

Call = Callable[[bytes], "asyncio.Future[Any]"]


async def cancel_at_random(call: Call, num_cancels: int) -> "Counter[str]":
    """Make calls until `num_cancels` were cancelled before their reply; return how many ended in which way."""
    loop, rng, tally, open_calls = asyncio.get_running_loop(), random.Random(0), Counter[str](), set[bytes]()

    def take(text: bytes, made: "asyncio.Future[Any]") -> None:
        open_calls.remove(text)
        failed = "cancelled" if made.cancelled() else "failed" if made.exception() else ""
        tally[failed or ("answered" if made.result() == text else "crossed")] += 1

    serial = 0
    while tally["cancelled"] < num_cancels:
        for _ in range(rng.randrange(MAX_OPEN // 4)):
            serial += 1
            open_calls.add(text := b"%d" % serial)
            made = call(text)
            made.add_done_callback(partial(take, text))
            if rng.random() < CANCELLED_SHARE:
                loop.call_later(rng.uniform(0, MAX_CANCEL_S) * rng.randrange(2), made.cancel)
        await asyncio.sleep(0.001)
        await eventually(lambda: len(open_calls) <= MAX_OPEN, poll_s=0.001)
    await eventually(lambda: not open_calls, 60)
    return tally


def calls_of(store: RedisStore) -> Call:
    """Return calls of a store: mostly futures, and some tasks that await one, as requests do."""

    async def ask(text: bytes) -> Any:
        return await store.call_nowait("ECHO", text)

    return lambda text: asyncio.create_task(ask(text)) if int(text) % 4 == 0 else store.call_nowait("ECHO", text)


@pytest.mark.parametrize(
    "num_cancels",
    [5_000, pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.serial, pytest.mark.timeout(3_600)])],
)
async def test_cancelled_calls_cross_no_replies_and_cost_no_connection(
    redis_server: RedisServer, num_cancels: int
) -> None:
    async with (
        FaultProxy(redis_server.address) as proxy,
        # A busy machine is no fault of Redis here.
        running_store(proxy.address, timeout_ms=10_000) as store,
    ):
        proxy.faults.request_delay, proxy.faults.reply_delay = REQUEST_DELAY, REPLY_DELAY
        made, opened, sent = proxy.num_made, proxy.num_open, store.num_commands
        tally = await cancel_at_random(calls_of(store), num_cancels)
        assert tally["cancelled"] >= num_cancels
        assert (tally["crossed"], tally["failed"]) == (0, 0)
        assert tally["answered"] > num_cancels / 10
        assert store.num_commands - sent > tally["answered"] + tally["cancelled"] / 2  # many were on their way
        assert (proxy.num_made, proxy.num_open) == (made, opened)
        assert store.breaker.num_opened == 0
