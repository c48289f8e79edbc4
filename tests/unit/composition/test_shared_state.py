"""The parts that replicas share run as long as the server, whatever happens to one of them."""

import asyncio
import logging
import socket

import pytest

from completion_server.composition import shared_state
from completion_server.composition.shared_state import SharedState
from completion_server.config import load_config
from completion_server.core.clock import MonotonicClock
from tests.support.redis_servers import free_port
from tests.support.server import eventually


async def test_a_part_that_fails_runs_again_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_state, "_RESTART_S", 0.01)
    config = load_config(None, [f'redis.addresses=["127.0.0.1:{free_port()}"]'], {})
    shared = SharedState(config, MonotonicClock())
    num_runs = 0

    async def fail_twice() -> None:
        nonlocal num_runs
        num_runs += 1
        if num_runs <= 2:
            raise ZeroDivisionError
        await asyncio.Event().wait()

    assert shared.lanes is not None
    monkeypatch.setattr(shared.lanes, "run", fail_twice)
    task = asyncio.create_task(shared.run())
    await eventually(lambda: num_runs == 3)
    assert not task.done()
    failures = [record for record in caplog.records if record.exc_info and record.levelno == logging.ERROR]
    assert [record.getMessage().partition(" ")[0] for record in failures] == ["SharedLanes"] * 2
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_gauges_tell_whether_redis_is_heard() -> None:
    config = load_config(None, [f'redis.addresses=["127.0.0.1:{free_port()}"]'], {})
    gauges = SharedState(config, MonotonicClock()).gauges()
    assert gauges["redis_listening"]() == 0
    assert "redis_listening" not in SharedState(load_config(None, [], {}), MonotonicClock()).gauges()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("server.listen=127.0.0.1:50051",), f"{socket.gethostname()}-50051"),
        (("server.listen=127.0.0.1:50051", "redis.replica_id=left"), "left"),
    ],
)
async def test_a_replica_has_the_same_name_after_a_restart(overrides: tuple[str, ...], expected: str) -> None:
    config = load_config(None, (*overrides, 'redis.addresses=["127.0.0.1:6379"]', "cache.enabled=false"), {})
    for _ in range(2):
        store = SharedState(config, MonotonicClock()).store
        assert store is not None
        assert store.settings.replica_id == expected


async def test_replicas_on_ports_that_the_system_picks_have_different_names() -> None:
    overrides = ("server.listen=127.0.0.1:0", 'redis.addresses=["127.0.0.1:6379"]', "cache.enabled=false")
    stores = [SharedState(load_config(None, overrides, {}), MonotonicClock()).store for _ in range(2)]
    assert len({store.settings.replica_id for store in stores if store is not None}) == 2
