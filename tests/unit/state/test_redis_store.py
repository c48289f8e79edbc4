"""The store on a real Redis: batches, outages and the breaker."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from completion_server.core.clock import MonotonicClock
from completion_server.state.redis_store import RedisStore
from completion_server.state.settings import RedisSettings
from completion_server.state.store import StoreUnavailableError
from tests.support.redis_servers import RedisServer, free_port
from tests.support.server import eventually
from tests.unit.state.stores import new_prefix, running_store

MakeRedis = Callable[..., RedisServer]


async def test_commands_get_their_own_replies(redis_server: RedisServer) -> None:
    async with running_store(redis_server.address) as store:
        prefix = new_prefix()
        sets = [store.call_nowait("SET", f"{prefix}:{i}", i) for i in range(1500)]
        gets = [store.call_nowait("GET", f"{prefix}:{i}") for i in range(1500)]
        await asyncio.gather(*sets)
        assert await asyncio.gather(*gets) == [str(i).encode() for i in range(1500)]


async def test_a_cancelled_call_leaves_the_others_alone(redis_server: RedisServer) -> None:
    async with running_store(redis_server.address) as store:
        num_connections = redis_server.num_connections_received()
        calls = [store.call_nowait("ECHO", str(i)) for i in range(100)]
        for call in calls[::2]:
            call.cancel()
        assert await asyncio.gather(*calls[1::2]) == [str(i).encode() for i in range(1, 100, 2)]
        now = redis_server.num_connections_received()
        assert now == num_connections


async def test_a_wrong_command_fails_alone(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with running_store(redis_server.address) as store:
        wrong, right = store.call_nowait("NONSENSE"), store.call_nowait("ECHO", "a")
        with pytest.raises(StoreUnavailableError, match="unknown command"):
            await wrong
        assert await right == b"a"
        assert store.is_available
        assert "Redis refuses a command" in caplog.text


async def test_a_killed_redis_opens_the_breaker_and_a_new_one_closes_it(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "completion_server.state")
    redis = make_redis()
    async with running_store(redis.address) as store:
        changes: list[bool] = []
        store.on_change(changes.append)
        redis.kill()
        with pytest.raises(StoreUnavailableError):
            await store.call_nowait("GET", "a")
        assert not store.is_available
        with pytest.raises(StoreUnavailableError):  # at once, without a connection
            store.call_nowait("GET", "a").result()
        await asyncio.sleep(0.3)
        redis.start()
        await eventually(lambda: store.is_available)
        assert await store.call_nowait("ECHO", "back") == b"back"
        assert changes == [False, True]
        lines = [record.message for record in caplog.records if "Redis" in record.message]
        assert [line.partition(":")[0].partition(" after")[0] for line in lines] == [
            "Redis answers",
            "Redis fails, so this replica goes on alone",
            "Redis answers",
        ]


async def test_a_frozen_redis_opens_the_breaker(make_redis: MakeRedis) -> None:
    redis = make_redis()
    async with running_store(redis.address, timeout_ms=50) as store:
        redis.freeze()
        waiting = [store.call_nowait("GET", "a") for _ in range(3)]
        await asyncio.wait(waiting, timeout=5)
        assert all(isinstance(call.exception(), StoreUnavailableError) for call in waiting)
        assert not store.is_available
        redis.thaw()
        await eventually(lambda: store.is_available)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("maxmemory", "OutOfMemory|maxmemory"),
        ("min-replicas-to-write", "NOREPLICAS"),
    ],
)
async def test_a_redis_that_can_not_be_written_to_opens_the_breaker(
    make_redis: MakeRedis, limit: str, reason: str
) -> None:
    redis = make_redis()
    async with running_store(redis.address) as store:
        redis.cli("config", "set", limit, 1)
        with pytest.raises(StoreUnavailableError, match=reason):
            await store.call_nowait("SET", "a", 1)
        assert not store.is_available
        await asyncio.sleep(0.2)  # the probe writes, so it does not close the breaker
        assert not store.is_available
        redis.cli("config", "set", limit, 0)
        await eventually(lambda: store.is_available)


async def test_a_read_only_replica_is_no_store(make_redis: MakeRedis) -> None:
    replica = make_redis(master=make_redis())
    settings = RedisSettings(addresses=(replica.address,), retry_s=0.05)
    store = RedisStore(settings, MonotonicClock())
    task = asyncio.create_task(store.run())
    await eventually(lambda: "READONLY" in store.breaker.reason or "read only" in store.breaker.reason)
    assert not store.is_available
    task.cancel()
    await asyncio.wait([task])


async def test_without_redis_calls_fail_at_once_and_run_goes_on() -> None:
    store = RedisStore(RedisSettings(addresses=(f"127.0.0.1:{free_port()}",), retry_s=0.05), MonotonicClock())
    task = asyncio.create_task(store.run())
    await eventually(lambda: "refused" in store.breaker.reason or "connect" in store.breaker.reason)
    with pytest.raises(StoreUnavailableError):
        store.call_nowait("GET", "a").result()
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("lacking", ["-eval", "-spublish", "-set", "resetchannels"])
async def test_a_user_who_may_not_do_what_replicas_do_is_no_outage_that_flaps(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    redis = make_redis(users=[f"default on nopass ~* &* +@all {lacking}"])
    store = RedisStore(RedisSettings(addresses=(redis.address,), retry_s=0.05), MonotonicClock())
    changes: list[bool] = []
    store.on_change(changes.append)
    task = asyncio.create_task(store.run())
    await eventually(lambda: "NoPermission" in store.breaker.reason or "can't run this command" in store.breaker.reason)
    await asyncio.sleep(0.2)  # some probes
    assert changes == []
    assert caplog.text.count("Redis fails") == 1
    redis.cli("ACL", "SETUSER", "default", "allchannels", "+@all")
    await eventually(lambda: store.is_available)
    task.cancel()
    await asyncio.wait([task])


async def test_a_redis_without_sharded_channels_is_too_old(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture
) -> None:
    redis = make_redis(config=['rename-command SPUBLISH ""'])
    store = RedisStore(RedisSettings(addresses=(redis.address,), retry_s=0.05), MonotonicClock())
    task = asyncio.create_task(store.run())
    await eventually(lambda: "Redis 7.0 or later is needed" in store.breaker.reason)
    assert "Redis 7.0 or later is needed" in caplog.text
    task.cancel()
    await asyncio.wait([task])


async def test_an_error_is_logged_once_a_minute_and_without_its_arguments(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_store(redis_server.address) as store:
        for number in range(5):
            await asyncio.wait([store.call_nowait("NONSENSE", f"argument-{number}")])
            await asyncio.wait([store.call_nowait("GET")])
        faults = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(faults) == 2
        assert "argument-0" not in caplog.text


async def test_a_script_that_hangs_is_an_outage(make_redis: MakeRedis) -> None:
    redis = make_redis(config=["busy-reply-threshold 10"])
    async with running_store(redis.address, timeout_ms=200) as store:
        await asyncio.wait([store.call_nowait("EVAL", "while true do end", 0)])
        await eventually(lambda: "BUSY" in store.breaker.reason)
        assert not store.is_available
        redis.cli("SCRIPT", "KILL")
        await eventually(lambda: store.is_available)


@pytest.mark.parametrize("has_nodes", [False, True])
async def test_a_cluster_that_is_down_is_one_line_in_the_log(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture, has_nodes: bool
) -> None:
    address = f"127.0.0.1:{free_port()}"
    if has_nodes:
        address = make_redis(config=["cluster-enabled yes"]).address  # it serves no slot
    settings = RedisSettings(addresses=(address,), topology="cluster", secret_file="secret", retry_s=0.05)
    store = RedisStore(settings, MonotonicClock())
    task = asyncio.create_task(store.run())
    await eventually(lambda: "Cluster" in store.breaker.reason or "Slot" in store.breaker.reason)
    await asyncio.sleep(0.3)  # some probes
    task.cancel()
    await asyncio.wait([task])
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert lines[0].exc_info is None


async def test_an_error_at_the_end_is_logged_and_no_more(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = RedisStore(RedisSettings(addresses=(redis_server.address,), retry_s=0.05), MonotonicClock())
    close = store.client.aclose

    async def fail() -> None:
        await close()
        raise ZeroDivisionError

    monkeypatch.setattr(store.client, "aclose", fail)
    task = asyncio.create_task(store.run())
    await eventually(lambda: store.is_available)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert "closing the connections to Redis: ZeroDivisionError" in caplog.text
