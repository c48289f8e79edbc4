"""Completions go on whatever happens to Redis: no request fails, the breaker opens, and closes by itself."""

import logging
import time
from collections.abc import Callable

import pytest

from tests.replicas.conftest import NUM_REPLICAS, ReplicaSet
from tests.support.fault_proxy import Delay
from tests.support.redis_servers import wait_until
from tests.support.replicas import asking_users, each_available

pytestmark = pytest.mark.serial  # a busy machine makes outages of its own

OPENS_WITHIN_S = 1.0
MARGIN_S = 15.0
"""Time for a busy machine on top of what is promised."""


def _kill(servers: ReplicaSet) -> Callable[[], object]:
    servers.redis.kill()
    return servers.redis.start


def _freeze(servers: ReplicaSet) -> Callable[[], object]:
    servers.redis.freeze()
    return servers.redis.thaw


def _black_hole(servers: ReplicaSet) -> Callable[[], object]:
    for proxy in servers.proxies:
        proxy.faults.black_hole = True
    return servers.heal


def _fill(servers: ReplicaSet) -> Callable[[], object]:
    servers.redis.cli("config", "set", "maxmemory", "1")
    return lambda: servers.redis.cli("config", "set", "maxmemory", "0")


def _make_read_only(servers: ReplicaSet) -> Callable[[], object]:
    servers.redis.cli("replicaof", "127.0.0.1", "1")  # nobody listens there
    return lambda: servers.redis.cli("replicaof", "no", "one")


def _change_password(servers: ReplicaSet) -> Callable[[], object]:
    redis = servers.redis
    redis.cli("config", "set", "requirepass", "another")
    redis.password = "another"
    redis.cli("client", "kill", "type", "normal", "skipme", "yes")

    def restore() -> None:
        redis.cli("config", "set", "requirepass", "")
        redis.password = ""

    return restore


@pytest.mark.parametrize("break_redis", [_kill, _freeze, _black_hole, _fill, _make_read_only, _change_password])
def test_no_request_fails_while_redis_is_away(
    replica_set: ReplicaSet,
    break_redis: Callable[[ReplicaSet], Callable[[], object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "completion_server")

    def num_lines(words: str) -> int:
        return sum(words in line for line in caplog.messages)

    wait_until(each_available(replica_set.replicas, 1.0))
    caplog.clear()
    with asking_users(replica_set.replicas) as asking:
        time.sleep(0.2)
        restore = break_redis(replica_set)
        try:
            wait_until(each_available(replica_set.replicas, 0.0), OPENS_WITHIN_S + MARGIN_S)
            before = asking.num_answered
            wait_until(lambda: asking.num_answered > before)
        finally:
            restore()
        wait_until(each_available(replica_set.replicas, 1.0), MARGIN_S)
    # A line of the log may come after the metric that says the same.
    wait_until(lambda: num_lines("Redis answers") == NUM_REPLICAS)
    assert num_lines("Redis fails") == NUM_REPLICAS


def test_a_slow_redis_changes_nothing(replica_set: ReplicaSet) -> None:
    wait_until(each_available(replica_set.replicas, 1.0))
    with asking_users(replica_set.replicas) as asking:
        for proxy in replica_set.proxies:
            proxy.faults.reply_delay = Delay(fixed_s=0.02)
        try:
            before = asking.num_answered
            wait_until(lambda: asking.num_answered > before + 20)
            wait_until(each_available(replica_set.replicas, 1.0), MARGIN_S)
        finally:
            replica_set.heal()


def test_operators_see_the_breaker(replica_set: ReplicaSet) -> None:
    wait_until(each_available(replica_set.replicas, 1.0))
    first = replica_set.replicas[0]
    assert first.status().replication.replica_id == first.name
    replica_set.proxies[0].faults.black_hole = True
    try:
        wait_until(lambda: not first.status().replication.redis_available)
        assert "Timeout" in first.status().replication.redis_failure
    finally:
        replica_set.heal()
    wait_until(lambda: first.status().replication.redis_available)
