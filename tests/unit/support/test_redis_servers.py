"""The Redis processes of tests: each option works, and what is killed, frozen or left running is gone at the end."""

import ssl
from collections import deque
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.redis_servers import Cluster, RedisServer, RedisTls, Sentinels, require_redis, running, wait_until

MakeRedis = Callable[..., RedisServer]


def test_a_server_answers_and_restarts_empty_on_its_port(make_redis: MakeRedis) -> None:
    server = make_redis()
    address = server.address
    assert server.cli("SET", "key", "value") == "OK"
    assert server.restart().address == address
    assert server.cli("GET", "key") == ""
    assert server.num_connections_received() == 0


def test_an_error_of_redis_fails_the_test(redis_server: RedisServer) -> None:
    with pytest.raises(AssertionError, match="unknown command"):
        redis_server.cli("NONSENSE")


def test_servers_are_gone_after_a_failure_also_frozen_ones() -> None:
    require_redis()
    servers = [RedisServer() for _ in range(2)]
    folders = [server.folder for server in servers]
    pids: list[int] = []

    def fail() -> None:
        with running(*servers):
            pids.extend(server.pid for server in servers)
            servers[1].freeze()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))
    assert not any(folder.exists() for folder in folders)
    servers[0].stop()


def test_a_frozen_server_answers_nothing_until_it_thaws(make_redis: MakeRedis) -> None:
    server = make_redis()
    server.freeze()
    assert server.is_running
    with pytest.raises((redis.TimeoutError, redis.ConnectionError)), _client(server, socket_timeout=0.2) as client:
        client.ping()
    server.thaw()
    assert server.cli("PING") == "PONG"


def test_users_and_passwords_are_asked_for(make_redis: MakeRedis) -> None:
    server = make_redis(password="secret", users=["alice on >hers ~a:* &* +@all -@dangerous"])
    assert server.cli("PING") == "PONG"
    with _client(server, username="alice", password="hers") as client:
        assert client.set("a:1", "value")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.set("b:1", "value")
    with pytest.raises(redis.AuthenticationError), _client(server) as client:
        client.ping()


def test_tls_asks_both_sides_for_a_certificate(make_redis: MakeRedis, tmp_path: Path) -> None:
    tls = RedisTls.make_in(tmp_path)
    server = make_redis(tls=tls)
    trusting = {"ssl": True, "ssl_ca_certs": str(tls.authority.certificate)}
    proving = {"ssl_certfile": str(tls.client.certificate), "ssl_keyfile": str(tls.client.key)}
    with _client(server, **trusting, **proving) as client:
        assert client.ping()
    for incomplete in (trusting, proving | {"ssl": True}):
        with pytest.raises((redis.ConnectionError, ssl.SSLError)), _client(server, **incomplete) as client:
            client.ping()


def test_a_full_server_refuses_writes(make_redis: MakeRedis) -> None:
    server = make_redis(config=["maxmemory 3mb", "maxmemory-policy noeviction"])
    with _client(server) as client, pytest.raises(redis.exceptions.OutOfMemoryError):
        deque((client.set(f"key{number}", bytes(100_000)) for number in range(100)), maxlen=0)


def test_a_replica_has_its_masters_keys_and_refuses_writes(make_redis: MakeRedis) -> None:
    master = make_redis(password="secret")
    replica = make_redis(password="secret", master=master)
    master.cli("SET", "key", "value")
    wait_until(lambda: replica.cli("GET", "key") == "value")
    with pytest.raises(AssertionError, match="READONLY"):
        replica.cli("SET", "key", "other")


@pytest.mark.parametrize("is_ci", [True, False])
def test_a_missing_redis_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch, is_ci: bool) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "1" if is_ci else "")
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as raised:
        require_redis()
    assert raised.type is (pytest.fail.Exception if is_ci else pytest.skip.Exception)


@pytest.mark.full
def test_sentinels_replace_a_killed_master(redis_sentinels: Sentinels) -> None:
    assert redis_sentinels.master is redis_sentinels.first_master
    redis_sentinels.first_master.kill()
    wait_until(lambda: redis_sentinels.master is redis_sentinels.first_replica)
    wait_until(lambda: redis_sentinels.first_replica.info("replication")["role"] == "master")


@pytest.mark.full
def test_a_cluster_serves_all_slots_and_replaces_a_master(redis_cluster: Cluster) -> None:
    masters = redis_cluster.masters
    with redis.RedisCluster(host="127.0.0.1", port=masters[0].port) as client:
        for number in range(30):
            client.set(f"key{number}", number)
    sizes = [int(node.cli("DBSIZE")) for node in masters]
    assert sum(sizes) == 30
    assert all(sizes)
    masters[2].kill()
    wait_until(lambda: any(node.info("replication")["role"] == "master" for node in redis_cluster.replicas))
    wait_until(lambda: "cluster_state:ok" in masters[0].cli("CLUSTER", "INFO"))


def _client(server: RedisServer, **options: object) -> redis.Redis:
    return redis.Redis("127.0.0.1", server.port, retry=Retry(NoBackoff(), 0), **options)  # type: ignore[arg-type]
