"""The store and the subscription on a real Redis: batches, outages and the breaker."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from completion_server.app.shared_state import DaySums, SharedState
from completion_server.config import load_config
from completion_server.core.checks import DAY_S
from completion_server.core.clock import MonotonicClock
from completion_server.requests.limits.day_tokens import DayTokens
from completion_server.state import subscription as module
from completion_server.state.clients import make_client
from completion_server.state.redis_store import RedisStore
from completion_server.state.secret import Secret
from completion_server.state.store import StoreUnavailableError
from completion_server.state.subscription import ChannelSubscription
from tests.support.cancels import cancel_and_wait
from tests.support.constants import with_constants
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_servers import RedisServer, free_port
from tests.support.server import eventually
from tests.unit.state.stores import failing_store, new_prefix, redis_settings, running_store

MakeRedis = Callable[..., RedisServer]


async def test_commands_get_their_own_replies(redis_server: RedisServer) -> None:
    async with running_store(redis_server.address) as store:
        prefix = new_prefix()
        sets = [store.call_nowait("SET", f"{prefix}:{i}", i) for i in range(1500)]
        gets = [store.call_nowait("GET", f"{prefix}:{i}") for i in range(1500)]
        await asyncio.gather(*sets)
        assert await asyncio.gather(*gets) == [str(i).encode() for i in range(1500)]


async def test_a_wrong_command_fails_alone_and_is_logged_once_a_minute_without_its_arguments(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_store(redis_server.address) as store:
        for number in range(5):
            wrong, other = store.call_nowait("NONSENSE", f"argument-{number}"), store.call_nowait("GET")
            right = store.call_nowait("ECHO", "a")
            with pytest.raises(StoreUnavailableError, match="unknown command"):
                await wrong
            assert await right == b"a"
            await asyncio.wait([other], timeout=30)
        assert store.is_available
        faults = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert ["Redis refuses a command" in fault for fault in faults] == [True, True]
        assert "argument-0" not in caplog.text


async def test_a_killed_redis_opens_the_breaker_and_a_new_one_closes_it(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "completion_server.state")
    redis = make_redis()
    async with running_store(redis.address) as store:
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
        assert store.breaker.num_opened == 1
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
    ("limit", "reason"), [("maxmemory", "OutOfMemory|maxmemory"), ("min-replicas-to-write", "NOREPLICAS")]
)
async def test_a_redis_that_can_not_be_written_to_opens_the_breaker(
    make_redis: MakeRedis, limit: str, reason: str
) -> None:
    redis = make_redis()
    async with running_store(redis.address) as store:
        redis.cli("config", "set", limit, 1)
        await eventually(lambda: re.search(reason, store.breaker.reason) is not None)  # though nothing needs it
        await asyncio.sleep(0.2)  # the probe writes, so it does not close the breaker
        with pytest.raises(StoreUnavailableError, match=reason):
            await store.call_nowait("SET", "a", 1)
        redis.cli("config", "set", limit, 0)
        await eventually(lambda: store.is_available)


async def test_a_redis_that_can_not_be_used_is_no_store(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture
) -> None:
    replica = make_redis(master=make_redis())
    old = make_redis(config=['rename-command SPUBLISH ""'])
    for address, reason in (
        (replica.address, "READONLY|read only"),
        (old.address, "Redis 7.0 or later is needed"),
        (f"127.0.0.1:{free_port()}", "refused|connect"),
    ):
        async with failing_store(reason, addresses=(address,)) as store:
            with pytest.raises(StoreUnavailableError):  # at once
                store.call_nowait("GET", "a").result()
    assert "Redis 7.0 or later is needed" in caplog.text


@pytest.mark.parametrize("lacking", ["-spublish", "-set", "resetchannels"])
async def test_a_user_who_may_not_do_what_replicas_do_is_no_outage_that_flaps(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    redis = make_redis(users=[f"default on nopass ~* &* +@all {lacking}"])
    async with failing_store("NoPermission|can't run this command", addresses=(redis.address,)) as store:
        await asyncio.sleep(0.2)  # some probes
        assert not store.is_available
        assert caplog.text.count("Redis fails") == 1
        redis.cli("ACL", "SETUSER", "default", "allchannels", "+@all")
        await eventually(lambda: store.is_available)


async def test_a_script_that_hangs_is_an_outage(make_redis: MakeRedis) -> None:
    redis = make_redis(config=["busy-reply-threshold 10"])
    async with running_store(redis.address, timeout_ms=200) as store:
        await asyncio.wait([store.call_nowait("EVAL", "while true do end", 0)], timeout=30)
        await eventually(lambda: "BUSY" in store.breaker.reason)
        assert not store.is_available
        redis.cli("SCRIPT", "KILL")
        await eventually(lambda: store.is_available)


@pytest.mark.parametrize("has_nodes", [False, True])
async def test_a_cluster_that_is_down_is_one_line_in_each_log(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture, has_nodes: bool
) -> None:
    address = f"127.0.0.1:{free_port()}"
    if has_nodes:
        address = make_redis(config=["cluster-enabled yes"]).address  # it serves no slot
    settings = {"topology": "cluster", "secret_file": "secret"}
    async with (
        failing_store("Cluster|Slot", addresses=(address,), **settings),
        running_subscription(address, **settings),
    ):
        await eventually(lambda: len(warnings_in(caplog)) >= 2)
        await asyncio.sleep(0.3)  # some probes
    assert len(warnings_in(caplog)) == 2
    assert not any(record.exc_info for record in caplog.records)


async def test_an_error_at_the_end_is_logged_and_no_more(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = RedisStore(redis_settings(addresses=(redis_server.address,)), MonotonicClock())
    close = store.client.aclose

    async def fail() -> None:
        await close()
        raise ZeroDivisionError

    monkeypatch.setattr(store.client, "aclose", fail)
    task = asyncio.create_task(store.run())
    await eventually(lambda: store.is_available)
    await cancel_and_wait(task)
    assert task.cancelled()
    assert "closing the connections to Redis: ZeroDivisionError" in caplog.text


@asynccontextmanager
async def running_subscription(address: str, **settings: Any) -> AsyncIterator[ChannelSubscription]:
    """Run a subscription to a channel of its own."""
    found = redis_settings(addresses=(address,), timeout_ms=100, **settings)
    client = make_client(found)
    subscription = ChannelSubscription(found, client, new_prefix(), lambda _data: None)
    task = asyncio.create_task(subscription.run())
    try:
        yield subscription
    finally:
        await cancel_and_wait(task)
        await client.aclose()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("connect_s", [3.0, 0.2])
async def test_a_connection_that_is_never_answered_is_given_up(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, connect_s: float
) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", connect_s)
    async with (
        FaultProxy(redis_server.address) as proxy,
        running_subscription(proxy.address) as subscription,
    ):
        await eventually(lambda: subscription.is_listening)
        made = proxy.num_made
        proxy.faults.black_hole = True
        proxy.reset_all()
        await eventually(lambda: proxy.num_made > made)
        await eventually(lambda: not subscription.is_listening)
        await proxy.heal()
        await eventually(lambda: subscription.is_listening)


async def test_an_outage_is_one_line_in_the_log(make_redis: MakeRedis, caplog: pytest.LogCaptureFixture) -> None:
    redis = make_redis()
    async with running_subscription(redis.address) as subscription:
        for number in (1, 2):
            await eventually(lambda: subscription.is_listening)
            redis.kill()
            await eventually(lambda: not subscription.is_listening)
            await asyncio.sleep(0.2)  # some attempts
            assert len(warnings_in(caplog)) == number
            assert "not listening to other replicas: ConnectionError" in warnings_in(caplog)[-1]
            redis.start()


async def test_a_user_without_channels_is_named_as_the_reason(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture
) -> None:
    redis = make_redis(users=["default on nopass ~* resetchannels +@all"])
    async with running_subscription(redis.address) as subscription:
        await eventually(lambda: bool(warnings_in(caplog)))
        assert "channel" in caplog.text
        assert not subscription.is_listening


PAGE = Path(__file__).parents[3] / "docs" / "replicas.md"


def documented_rules() -> str:
    """Return the rules of the ACL user of a single Redis."""
    (rules,) = re.findall(r"^(~completion:\* .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert isinstance(rules, str)
    return rules


async def test_the_documented_rules_are_enough_for_one_redis(
    make_redis: Callable[..., RedisServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redis = make_redis(users=[f"alice on >secret {documented_rules()}"], password="admin")
    password = tmp_path / "password"
    password.write_text("secret")
    overrides = [
        f'redis.addresses=["{redis.address}"]',
        "redis.username=alice",
        f"redis.password_file={password}",
    ]
    config = load_config(None, overrides, {})
    settings = with_constants(config.redis, timeout_ms=10_000)  # a busy machine is no fault of Redis
    shared = SharedState(replace(config, redis=settings), MonotonicClock())
    days = DayTokens(time.time)
    shared.add_up(days)
    task = asyncio.create_task(shared.run())
    store, status = shared.store, shared.replication_status
    assert store is not None
    # A subscription may listen before the store's first probe has closed the breaker.
    await eventually(lambda: (found := status()) is not None and found.is_listening and found.is_redis_available)
    await store.call_nowait("SET", "completion:cache:a", "value", "PX", 1000)
    await store.call_nowait("GET", "completion:cache:a")
    assert shared.lanes is not None
    shared.lanes.announce("lane", shared.stamp())
    days.charge("acme", 7)

    def lasts() -> bool:
        """Return whether the day's sum is there with its time to live, which comes after it."""
        keys = redis.cli("KEYS", "completion:tokens:*").split()
        return bool(keys) and int(redis.cli("TTL", keys[0])) > DAY_S

    await eventually(lasts)
    (key,) = redis.cli("KEYS", "completion:tokens:*").split()
    assert redis.cli("GET", key) == "7"
    await eventually(lambda: shared.lanes is not None and shared.lanes.num_sent > 0)
    await store.call_nowait("GET", "completion:cache:a")  # its batch follows the message's
    assert store.is_available
    assert warnings_in(caplog) == []
    assert redis.cli("ACL", "LOG") == ""
    await cancel_and_wait(task)


async def test_replicas_learn_the_sum_also_after_redis_was_away(redis_server: RedisServer) -> None:
    prefix, secret = new_prefix(), Secret(b"s" * 32)
    async with (
        running_store(redis_server.address, retry_s=3600) as cut_off,
        running_store(redis_server.address) as store,
    ):
        here, there, restarted = (DayTokens(lambda: 10.0) for _ in range(3))
        here.charge("acme", 60)
        there.charge("acme", 50)
        cut_off.breaker.failed("a test", 0.0)
        await DaySums(cut_off, secret, prefix, here).exchange()
        assert not here.wait_s("acme", 61)
        await DaySums(store, secret, prefix, there).exchange()
        assert not there.wait_s("acme", 51)
        await DaySums(store, secret, prefix, here).exchange()
        assert here.wait_s("acme", 110)
        assert not here.wait_s("acme", 111)
        restarted.charge("acme", 0)
        await DaySums(store, secret, prefix, restarted).exchange()
        assert restarted.wait_s("acme", 110)
        assert "acme" not in redis_server.cli("KEYS", f"{prefix}:*")
