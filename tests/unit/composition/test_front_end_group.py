"""The parts of front ends of one server, as the composition root builds them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from completion_server.composition.shared_state import SharedState
from completion_server.config import load_config
from completion_server.core.clock import MonotonicClock
from completion_server.core.request import Caller
from completion_server.scheduling.requests import LiveRequest
from tests.support.cancels import cancel_and_wait
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.unit.scheduling.live_requests import live
from tests.unit.state.local.front_ends import made_parent

CALLER = Caller("user", "editor", is_verified=True)


class Superseding:
    """What `SharedState` uses of a service."""

    def __init__(self) -> None:
        self.runner = self
        self.superseded: list[tuple[str, int]] = []
        self.live: list[LiveRequest] = []

    def supersede_nowait(self, lane: str, stamp: int) -> None:
        self.superseded.append((lane, stamp))

    def known_to_replicas(self) -> list[LiveRequest]:
        return self.live


@asynccontextmanager
async def front_ends(*overrides: str) -> AsyncIterator[list[tuple[SharedState, Superseding]]]:
    """Run the parts of two front ends, and yield them when they know each other."""
    async with made_parent(2) as parent:
        found = []
        for place in range(2):
            config = load_config(None, list(overrides), {})
            shared, service = SharedState(config, MonotonicClock(), group=parent.group(place)), Superseding()
            shared.serve(service)  # type: ignore[arg-type]
            found.append((shared, service))
        tasks = [asyncio.create_task(shared.run()) for shared, _service in found]
        for shared, _service in found:
            await shared.wait_connected()
        yield found
        for shared, _service in found:
            await shared.leave()
        for task in tasks:
            await cancel_and_wait(task)


async def check_newest_wins(found: list[tuple[SharedState, Superseding]]) -> None:
    (first, first_service), (second, second_service) = found
    older = live("r1", lane="lane", session="a", stamp=first.stamp())
    first.announce(older)
    newer = live("r2", lane="lane", session="b", stamp=second.stamp())
    assert newer.stamp > older.stamp
    second.announce(newer)
    await eventually(lambda: ("lane", newer.stamp) in first_service.superseded)
    assert all(stamp <= newer.stamp for _lane, stamp in second_service.superseded), "the newest one goes on"


async def test_front_ends_without_redis_share_lanes_limits_and_salts() -> None:
    async with front_ends() as found:
        await check_newest_wins(found)
        first, second = (shared for shared, _service in found)
        assert first.limiters is first.server_limiters
        assert first.isolation.salt(CALLER) == second.isolation.salt(CALLER)
        await eventually(lambda: first.gauges()["front_ends_alive"]() == 2)
        assert second.counters()["front_end_messages_sent"]() > 0


async def test_front_ends_with_redis_are_replicas_of_their_own(redis_server: RedisServer) -> None:
    settings = f'redis.addresses=["{redis_server.address}"]', "redis.replica_id=server", "redis.key_prefix=front-ends"
    async with front_ends(*settings) as found:
        await check_newest_wins(found)
        first, second = (shared for shared, _service in found)
        assert first.limiters is not first.server_limiters
        await eventually(lambda: {each.id for each in first.limiters.replicas.seen} == {"server-0", "server-1"})
        await eventually(lambda: second.gauges()["front_ends_alive"]() == 2)


async def test_a_lane_that_other_servers_do_not_know_is_told_within_the_server(redis_server: RedisServer) -> None:
    settings = f'redis.addresses=["{redis_server.address}"]', "redis.key_prefix=within"
    async with front_ends(*settings) as ((first, service), (second, _)):
        older = replace(live("r1", lane="lane", session="a", stamp=first.stamp()), is_known_everywhere=False)
        service.live.append(older)
        first.announce(older)
        newer = replace(live("r2", lane="lane", session="b", stamp=second.stamp()), is_known_everywhere=False)
        second.announce(newer)
        await eventually(lambda: ("lane", newer.stamp) in service.superseded)
        first.lanes.announce_live()
        assert first.counters()["lane_announcements"]() == second.counters()["lane_announcements"]() == 0


@pytest.mark.parametrize("redis_us", [0, 1_700_000_000_000_000])
async def test_a_stamp_is_newer_than_those_of_other_front_ends_whatever_redis_says(redis_us: int) -> None:
    async with front_ends() as found:
        first, second = (shared.member for shared, _service in found)
        ahead = first.lanes.stamp(redis_us + 5000)
        assert ahead < second.lanes.stamp(redis_us) < first.lanes.stamp(redis_us)
