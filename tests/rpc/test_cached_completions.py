"""The completion cache from end to end: whole servers, in front of an engine that takes its time, and a real Redis."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from completion.v1 import completion_pb2 as pb
from completion_server.config import Config
from completion_server.engine.interface import Engine, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.redis_servers import RedisServer
from tests.support.server import Answer, RunningServer, ask, eventually, make_config, request, run_server

ALICE = (("x-user-id", "alice"), ("x-tenant-id", "acme"))
BOB = (("x-user-id", "bob"), ("x-tenant-id", "acme"))
OTHER = (("x-user-id", "alice"), ("x-tenant-id", "other"))
CACHED = ("cache.enabled=true", "cache.lookup_ms=1000", "engine.warm_up=false", "engine.heartbeat_s=0")
"""Tests share their processors with others, so a lookup may take long, as any call of Redis."""
_sequences = itertools.count()


def make_engine() -> Engine:
    """Return an engine whose answers differ, with a first token after 0.2 s: a lookup in Redis is faster."""
    numbers = itertools.count()

    def words(_request: GenerationRequest) -> Iterator[str]:
        return iter(("number", " of ", f"{next(numbers)}"))

    return ScriptedEngine(words, ServiceTimes(prefill_base_s=0.2))


def cached_config(redis: RedisServer | None = None, *overrides: str) -> Config:
    if redis is not None:
        overrides = (f'redis.addresses=["{redis.address}"]', "redis.timeout_ms=10000", *overrides)
    return make_config(*CACHED, *overrides)


async def ask_for(
    server: RunningServer, prefix: str, metadata: tuple[tuple[str, str], ...] = ALICE, **fields: Any
) -> tuple[str, pb.CacheLevel]:
    """Return the text of an answer and the level of the cache that gave it."""
    answer: Answer = await ask(server.stub, request(prefix, sequence=next(_sequences), **fields), metadata=metadata)
    assert answer.reason == "stop"
    assert answer.end is not None
    return answer.text, answer.end.usage.cache_level


async def test_the_same_request_is_computed_once_for_each_user() -> None:
    async with run_server(cached_config(), make_engine) as server:
        assert await ask_for(server, "x = ") == ("number of 0", pb.CACHE_LEVEL_NONE)
        assert await ask_for(server, "x = num") == ("ber of 0", pb.CACHE_LEVEL_LOCAL)
        assert await ask_for(server, "x = ", BOB) == ("number of 1", pb.CACHE_LEVEL_NONE)
        assert await ask_for(server, "x = ", OTHER) == ("number of 2", pb.CACHE_LEVEL_NONE)
        assert server.count("completion_cache_hits_total", level="local") == 1
        assert server.count("completion_cache_misses_total", level="local", reason="absent") == 3
        assert server.count("completion_cache_entries") == 3
        assert server.count("completion_cache_bytes") > 0
        assert server.count("completion_tokens_total", kind="completion") == 3 * 4


async def test_a_replica_answers_with_what_another_computed(redis_server: RedisServer) -> None:
    config = cached_config(redis_server, "admission.trust_user_names=true", "redis.key_prefix=wire")
    async with run_server(config, make_engine) as one, run_server(config, make_engine) as two:
        await ask_for(one, "first\nline = ")
        assert await ask_for(one, "x = ") == ("number of 1", pb.CACHE_LEVEL_NONE)
        await eventually(lambda: len(redis_server.cli("KEYS", "wire:cache:*").split()) == 2)
        found = await ask_for(two, "x = num")
        assert found == ("ber of 1", pb.CACHE_LEVEL_SHARED)
        assert await ask_for(two, "x = n") == ("umber of 1", pb.CACHE_LEVEL_LOCAL)
        text, level = await ask_for(two, "x = ", OTHER)
        assert (text[:10], level) == ("number of ", pb.CACHE_LEVEL_NONE)
        assert two.count("completion_cache_hits_total", level="shared") == 1
        assert two.count("completion_cache_lookup_seconds_count") >= 2


@pytest.mark.parametrize(
    ("setting", "fields"), [("cache.enabled=false", {}), ("cache.enabled=true", {"without_completion_cache": True})]
)
async def test_without_the_cache_each_request_is_computed_and_leaves_nothing_there(
    redis_server: RedisServer, setting: str, fields: dict[str, bool]
) -> None:
    config = cached_config(redis_server, "redis.key_prefix=refused", "admission.trust_user_names=true", setting)
    async with run_server(config, make_engine) as server:
        for number in range(2):
            assert await ask_for(server, "x = ", **fields) == (f"number of {number}", pb.CACHE_LEVEL_NONE)
        if fields:
            assert server.count("completion_cache_misses_total", level="local", reason="absent") == 0
            assert server.count("completion_cache_entries") == 0
            assert server.count("completion_cache_lookup_seconds_count") == 0
