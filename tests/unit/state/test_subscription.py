"""The subscription on a real Redis that goes away, hangs, or refuses."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from completion_server.state import subscription as module
from completion_server.state.clients import make_client
from completion_server.state.settings import RedisSettings
from completion_server.state.subscription import ChannelSubscription
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_servers import RedisServer, free_port
from tests.support.server import eventually
from tests.unit.state.stores import new_prefix

MakeRedis = Callable[..., RedisServer]


@asynccontextmanager
async def running_subscription(address: str, **settings: Any) -> AsyncIterator[ChannelSubscription]:
    """Run a subscription to a channel of its own."""
    found = RedisSettings(addresses=(address,), retry_s=0.05, **settings)
    client = make_client(found)
    subscription = ChannelSubscription(found, client, new_prefix(), lambda _data: None)
    task = asyncio.create_task(subscription.run())
    try:
        yield subscription
    finally:
        task.cancel()
        await asyncio.wait([task])
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


@pytest.mark.parametrize("has_nodes", [False, True])
async def test_a_cluster_that_is_down_is_one_line_in_the_log(
    make_redis: MakeRedis, caplog: pytest.LogCaptureFixture, has_nodes: bool
) -> None:
    address = f"127.0.0.1:{free_port()}"
    if has_nodes:
        address = make_redis(config=["cluster-enabled yes"]).address  # it serves no slot
    async with running_subscription(address, topology="cluster", secret_file="secret"):
        await eventually(lambda: bool(warnings_in(caplog)))
        await asyncio.sleep(0.3)
    assert len(warnings_in(caplog)) == 1
    assert not any(record.exc_info for record in caplog.records)
