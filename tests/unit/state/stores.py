"""A store on a real Redis, for tests."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from completion_server.core.clock import MonotonicClock
from completion_server.state.redis_store import RedisStore
from completion_server.state.settings import RedisSettings
from tests.support.cancels import cancel_and_wait
from tests.support.constants import with_constants
from tests.support.server import eventually

_numbers = itertools.count()


def new_prefix() -> str:
    """Return a prefix of keys that no other test uses."""
    return f"test-{next(_numbers)}"


def redis_settings(*, retry_s: float = 0.05, timeout_ms: float = 10_000, **values: Any) -> RedisSettings:
    """Return settings with more time than in service: a busy machine is no fault of Redis."""
    return with_constants(RedisSettings(**values), retry_s=retry_s, timeout_ms=timeout_ms)


@asynccontextmanager
async def running_store(address: str, **settings: Any) -> AsyncIterator[RedisStore]:
    """Run a store, and yield it when it is connected."""
    store = RedisStore(
        redis_settings(**{"addresses": (address,), "key_prefix": new_prefix()} | settings), MonotonicClock()
    )
    task = asyncio.create_task(store.run())
    try:
        await eventually(lambda: store.is_available)
        yield store
    finally:
        await cancel_and_wait(task)


@asynccontextmanager
async def failing_store(reason: str, **settings: Any) -> AsyncIterator[RedisStore]:
    """Run a store that can't connect, and yield it when it has said so for `reason`, a regular expression."""
    store = RedisStore(redis_settings(**settings), MonotonicClock())
    task = asyncio.create_task(store.run())
    try:
        await eventually(lambda: re.search(reason, store.breaker.reason) is not None)
        assert not store.is_available
        assert store.breaker.num_opened == 0, "a start without Redis is no outage"
        yield store
        assert not task.done()
    finally:
        await cancel_and_wait(task)


async def check_fails(reason: str, **settings: Any) -> None:
    """Check that a store can't connect, and says `reason`."""
    async with failing_store(reason, **settings):
        pass
