"""Level 2 on a real Redis: what it holds, how long, and what a reader of it can learn."""

import asyncio
from dataclasses import replace

import pytest

from completion_server.core.clock import MonotonicClock
from completion_server.core.events import CacheHit, CacheMiss, Event, MissReason
from completion_server.core.outcome import CacheLevel
from completion_server.core.request import Caller, Snippet
from completion_server.state.cache.cache import TwoLevelCache, make_cache
from completion_server.state.redis_store import RedisStore
from completion_server.state.secret import Secret
from completion_server.state.settings import CacheSettings, RedisSettings
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.unit.state.cache.cache_parts import SECRET, Received, answer_of, make_keys, request_of
from tests.unit.state.stores import new_prefix, running_store

CANARY = "CANARY_TEXT"
USER = "canary-user"
REQUEST = request_of(
    f"{CANARY} = 1\n{CANARY}",
    suffix=f"\n{CANARY}",
    document_uri=f"file:///{CANARY}",
    snippets=(Snippet(CANARY, CANARY),),
    caller=Caller(USER, USER, USER, is_verified=True),
)
PATIENT = CacheSettings(lookup_ms=1000)
"""Tests share their processors with others."""


def make_replica(
    store: RedisStore, prefix: str, events: list[Event], settings: CacheSettings = PATIENT, secret: bytes = SECRET
) -> TwoLevelCache:
    redis = RedisSettings(("127.0.0.1:1",), key_prefix=prefix)
    cache = make_cache(settings, redis, Secret(secret), store, MonotonicClock(), events.append)
    assert cache is not None
    cache.use_keys(make_keys())
    return cache


async def keep(cache: TwoLevelCache, store: RedisStore, prefix: str, text: str = CANARY) -> bytes:
    """Keep an answer, and return its key in Redis."""
    lookup = cache.look_up_nowait(REQUEST)
    assert lookup is not None
    lookup.keep(answer_of(text))
    keys: list[bytes] = []

    async def is_written() -> bool:
        keys[:] = await store.call_nowait("KEYS", f"{prefix}:cache:*")
        return bool(keys)

    async with asyncio.timeout(10):
        while not await is_written():
            await asyncio.sleep(0.01)
    assert len(keys) == 1
    return keys[0]


async def fetch(cache: TwoLevelCache, events: list[Event]) -> list[str]:
    """Ask Redis for the answer, and return it."""
    received, lookup = Received(), cache.look_up_nowait(REQUEST)
    assert lookup is not None
    lookup.fetch_nowait(received)

    def is_decided() -> bool:
        return any(isinstance(each, CacheHit | CacheMiss) and each.level is CacheLevel.SHARED for each in events)

    await eventually(is_decided)
    return [answer.text for answer in received.answers]


@pytest.mark.parametrize("encrypt", [False, True])
async def test_one_replica_answers_with_what_another_computed(redis_server: RedisServer, encrypt: bool) -> None:
    prefix, settings = new_prefix(), replace(PATIENT, encrypt=encrypt)
    async with running_store(redis_server.address) as store, running_store(redis_server.address) as other:
        key = await keep(make_replica(store, prefix, [], settings), store, prefix, text="answer " * 200)
        events: list[Event] = []
        assert await fetch(make_replica(other, prefix, events, settings), events) == ["answer " * 200]
        assert 0 < await store.call_nowait("PTTL", key) <= 60_000
        assert await store.call_nowait("STRLEN", key) < 300


async def test_redis_holds_no_text_and_no_names(redis_server: RedisServer) -> None:
    prefix = new_prefix()
    async with running_store(redis_server.address) as store:
        encrypts = replace(PATIENT, encrypt=True)
        key = await keep(make_replica(store, prefix, [], encrypts), store, prefix)
        value = await store.call_nowait("GET", key)
        for canary in (CANARY, USER):
            assert canary.lower() not in key.decode().lower()
            assert canary.encode() not in value
        await store.call_nowait("DEL", key)
        plain = await keep(make_replica(store, prefix, [], replace(PATIENT, encrypt=False)), store, prefix)
        assert plain == key
        value = await store.call_nowait("GET", key)
        assert CANARY.encode() in value  # so the search above can find it
        assert USER.encode() not in value


@pytest.mark.parametrize("encrypt", [False, True])
async def test_a_damaged_value_is_a_miss(redis_server: RedisServer, encrypt: bool) -> None:
    prefix, settings = new_prefix(), replace(PATIENT, encrypt=encrypt)
    async with running_store(redis_server.address) as store:
        key = await keep(make_replica(store, prefix, [], settings), store, prefix)
        await store.call_nowait("SETRANGE", key, 20, b"\0\0\0\0")
        events: list[Event] = []
        assert await fetch(make_replica(store, prefix, events, settings), events) == []
        assert CacheMiss(CacheLevel.SHARED, MissReason.UNDECODABLE) in events


async def test_a_value_of_another_secret_is_a_miss(redis_server: RedisServer) -> None:
    prefix = new_prefix()
    async with running_store(redis_server.address) as store:
        await keep(make_replica(store, prefix, []), store, prefix)
        events: list[Event] = []
        assert await fetch(make_replica(store, prefix, events, secret=b"s" * 32), events) == []
        assert CacheMiss(CacheLevel.SHARED, MissReason.UNDECODABLE) in events


async def test_a_value_of_another_type_is_a_miss(redis_server: RedisServer) -> None:
    prefix = new_prefix()
    async with running_store(redis_server.address) as store:
        key = await keep(make_replica(store, prefix, []), store, prefix)
        await store.call_nowait("DEL", key)
        await store.call_nowait("LPUSH", key, "x")
        events: list[Event] = []
        assert await fetch(make_replica(store, prefix, events), events) == []
        assert CacheMiss(CacheLevel.SHARED, MissReason.UNAVAILABLE) in events


async def test_redis_drops_a_completion_after_its_time(redis_server: RedisServer) -> None:
    prefix, settings = new_prefix(), replace(PATIENT, shared_ttl_s=0.5)
    async with running_store(redis_server.address) as store:
        await keep(make_replica(store, prefix, [], settings), store, prefix)
        async with asyncio.timeout(10):
            while await store.call_nowait("KEYS", f"{prefix}:cache:*"):
                await asyncio.sleep(0.05)
        events: list[Event] = []
        assert await fetch(make_replica(store, prefix, events, settings), events) == []
        assert CacheMiss(CacheLevel.SHARED, MissReason.ABSENT) in events
