"""The ACL rules that the documentation gives are enough for all that replicas do."""

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from completion_server.composition.shared_state import SharedState
from completion_server.config import load_config
from completion_server.core.clock import MonotonicClock
from completion_server.state import lanes
from completion_server.state.lanes.known import Announcement
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually

PAGE = Path(__file__).parents[3] / "docs" / "replicas.md"
STATE = Path(lanes.__file__).parent
FINISHED_S = 0.3
"""For some heartbeats and a batch."""


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
        "redis.timeout_ms=2000",
    ]
    shared = SharedState(load_config(None, overrides, {}), MonotonicClock())
    task = asyncio.create_task(shared.run())
    store = shared.store
    assert store is not None
    status = shared.replication_status
    await eventually(lambda: (found := status()) is not None and found.is_listening and found.limits_phase == "shared")
    for command in [
        ("SET", "completion:cache:a", "value", "PX", 1000),
        ("GET", "completion:cache:a"),
        ("SPUBLISH", "completion:replica:a", "message"),
    ]:
        await store.call_nowait(*command)
    assert shared.lanes is not None
    shared.lanes.accepted(Announcement("lane", "session", 1, shared.stamp()))
    await shared.leave()
    await asyncio.sleep(FINISHED_S)
    assert store.is_available
    faults = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not faults
    assert redis.cli("ACL", "LOG") == ""
    task.cancel()
    await asyncio.wait([task])


def test_the_documented_rules_allow_what_scripts_call() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in STATE.rglob("*.py"))
    called = {name.lower() for name in re.findall(r"redis\.p?call\(['\"](\w+)", sources)}
    assert "hmget" in called
    assert {f"+{name}" for name in called} <= set(documented_rules().split())
