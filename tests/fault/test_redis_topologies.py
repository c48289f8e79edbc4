"""The store and the subscription on each kind of Redis that the settings can name, each of them real."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from completion_server.state.redis_store import RedisStore
from completion_server.state.settings import RedisTlsSettings
from completion_server.state.store import StoreUnavailableError
from completion_server.state.subscription import ChannelSubscription
from tests.support.cancels import cancel_and_wait
from tests.support.certificates import make_identity_in
from tests.support.redis_servers import MASTER_NAME, Cluster, RedisServer, RedisTls, Sentinels
from tests.support.server import eventually
from tests.unit.state.stores import check_fails, running_store

MakeRedis = Callable[..., RedisServer]
NUM_KEYS = 60
RULES = "on ~* &* +@all -@dangerous"
"""Of an ordinary user: no administration."""
SECRET_FILE = "/run/secrets/completion-secret"
"""Only named: a store does not read it."""
CHANGE_S = 30.0
"""For a failover, or a cluster that notices that a node has gone."""


async def has_all_keys(store: RedisStore) -> bool:
    """Write and read keys of many slots, and return whether each had its own value."""
    keys = [f"{store.settings.key_prefix}:{number}" for number in range(NUM_KEYS)]
    await asyncio.gather(*(store.call_nowait("SET", key, key) for key in keys))
    values = await asyncio.gather(*(store.call_nowait("GET", key) for key in keys))
    return bool(values == [key.encode() for key in keys])


@asynccontextmanager
async def listening(store: RedisStore, channel: str) -> AsyncIterator[list[bytes]]:
    """Yield what is received on a channel, once messages arrive there."""
    received: list[bytes] = []
    subscription = ChannelSubscription(store.settings, store.client, channel, received.append)
    task = asyncio.create_task(subscription.run())
    try:
        await eventually(lambda: subscription.is_listening)
        yield received
    finally:
        await cancel_and_wait(task)


async def passes_messages(store: RedisStore) -> bool:
    """Return whether messages arrive on channels of some slots."""
    for number in range(4):
        channel = f"{store.settings.key_prefix}:channel:{number}"
        async with listening(store, channel) as received:
            await store.call_nowait("SPUBLISH", channel, b"message")
            await eventually(lambda received=received: received == [b"message"])  # type: ignore[misc]
    return True


def sentinel_settings(sentinels: Sentinels) -> dict[str, Any]:
    return {
        "addresses": sentinels.addresses,
        "topology": "sentinel",
        "master_name": MASTER_NAME,
        "secret_file": SECRET_FILE,
    }


def tls_settings(tls: RedisTls) -> RedisTlsSettings:
    return RedisTlsSettings(
        enabled=True,
        ca=str(tls.authority.certificate),
        certificate=str(tls.client.certificate),
        key=str(tls.client.key),
    )


async def test_tls_with_a_user_whose_password_changes(make_redis: MakeRedis, tmp_path: Path) -> None:
    tls, password = RedisTls.make_in(tmp_path), tmp_path / "password"
    server = make_redis(tls=tls, users=[f"alice {RULES} >first"], password="admin")
    password.write_text("first\n")
    settings = {"tls": tls_settings(tls), "username": "alice", "password_file": str(password)}
    async with running_store(server.address, **settings) as store:
        assert await has_all_keys(store)
        assert await passes_messages(store)
        async with listening(store, "channel") as received:
            server.cli("ACL", "SETUSER", "alice", "resetpass", ">second")
            server.cli("CLIENT", "KILL", "USER", "alice")
            with pytest.raises(StoreUnavailableError):
                await store.call_nowait("GET", "a")
            assert not store.is_available
            await eventually(lambda: "AuthenticationError" in store.breaker.reason)
            password.write_text("second\n")
            await eventually(lambda: store.is_available)
            await publish_until(store, "channel", received)


async def publish_until(store: RedisStore, channel: str, received: list[bytes]) -> None:
    """Publish until something is received: a subscription that has lost its connection needs time."""
    async with asyncio.timeout(CHANGE_S):
        while not received:
            await asyncio.wait([store.call_nowait("SPUBLISH", channel, b"message")], timeout=CHANGE_S)
            await asyncio.sleep(0.05)


async def test_a_store_without_the_right_proof_says_why_it_is_refused(make_redis: MakeRedis, tmp_path: Path) -> None:
    """The server's certificate must be of its authority and for its address; the client needs one and a password."""
    tls = RedisTls.make_in(tmp_path)
    address = make_redis(tls=tls, password="secret").address
    elsewhere = make_identity_in(tmp_path, "elsewhere", "redis.example", tls.authority)
    misnamed = make_redis(tls=RedisTls(elsewhere, tls.authority, tls.client)).address
    stranger, trusted = make_identity_in(tmp_path, "stranger"), str(tls.authority.certificate)
    missing = str(tmp_path / "missing")
    for server, settings, reason in (
        (address, {"tls": RedisTlsSettings(enabled=True, ca="")}, "CERTIFICATE_VERIFY_FAILED"),
        (address, {"tls": RedisTlsSettings(enabled=True, ca=str(stranger.certificate))}, "CERTIFICATE_VERIFY_FAILED"),
        (misnamed, {"tls": tls_settings(tls)}, "not valid for '127.0.0.1'"),
        (address, {"tls": RedisTlsSettings(enabled=True, ca=trusted)}, "ConnectionError"),
        (address, {"tls": tls_settings(tls)}, "Authentication required"),
        (address, {"tls": tls_settings(tls), "password_file": missing}, "FileNotFoundError"),
    ):
        await check_fails(reason, addresses=(server,), **settings)


async def test_a_unix_socket(make_redis: MakeRedis) -> None:
    server = make_redis()
    async with running_store(f"unix:{server.socket_path}") as store:
        assert await has_all_keys(store)
        assert await passes_messages(store)
        server.kill()
        await asyncio.wait([store.call_nowait("GET", "a")], timeout=CHANGE_S)
        assert not store.is_available
        server.start()
        await eventually(lambda: store.is_available)


@pytest.mark.full
async def test_sentinels_and_a_failover_in_mid_run(redis_sentinels: Sentinels) -> None:
    settings = sentinel_settings(redis_sentinels)
    async with running_store(redis_sentinels.addresses[0], **settings) as store:
        assert await has_all_keys(store)
        assert await passes_messages(store)
        async with listening(store, "channel") as received:
            redis_sentinels.sentinels[0].kill()  # as if it had shared a machine with the master
            redis_sentinels.first_master.kill()
            with pytest.raises(StoreUnavailableError):
                await store.call_nowait("GET", "a")
            await eventually(lambda: store.is_available, CHANGE_S)
            assert await has_all_keys(store)
            await publish_until(store, "channel", received)
        assert int(redis_sentinels.first_replica.cli("DBSIZE")) >= NUM_KEYS


@pytest.mark.full
async def test_a_cluster_and_a_failover_in_mid_run(redis_cluster: Cluster) -> None:
    masters = redis_cluster.masters
    addresses = tuple(node.address for node in masters[:2])
    async with running_store(addresses[0], addresses=addresses, topology="cluster", secret_file=SECRET_FILE) as store:
        assert await has_all_keys(store)
        assert all(int(node.cli("DBSIZE")) > 0 for node in masters)
        assert await passes_messages(store)
        channel = await channel_of(masters[0], store)
        async with listening(store, channel) as received:
            masters[0].kill()
            await eventually_has_all_keys(store)
            await publish_until(store, channel, received)


async def channel_of(node: RedisServer, store: RedisStore) -> str:
    """Return a channel in a slot of a node, which has the first third of them."""
    names = (f"{store.settings.key_prefix}:{number}" for number in itertools.count())
    return next(name for name in names if int(node.cli("CLUSTER", "KEYSLOT", name)) < 5_000)


async def eventually_has_all_keys(store: RedisStore) -> None:
    """Try until all keys can be written and read: the breaker closes with the slot of its probe alone."""
    async with asyncio.timeout(CHANGE_S):
        while True:
            try:
                if await has_all_keys(store):
                    return
            except StoreUnavailableError:
                await asyncio.sleep(0.1)
