"""Newest wins across replicas: several registries of one process on one real Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from completion_server.core.clock import MonotonicClock
from completion_server.state.lanes import Announcement, SharedLanes
from completion_server.state.redis_store import RedisStore
from completion_server.state.secret import Secret
from completion_server.state.subscription import ChannelSubscription
from tests.support.cancels import cancel_and_wait
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.unit.state.stores import new_prefix, running_store

SECRET = Secret(b"s" * 32)


@dataclass
class Replica:
    """A replica with a book of its own: the requests by lane, with their stamps."""

    name: str
    store: RedisStore
    prefix: str
    live: dict[str, Announcement] = field(default_factory=dict)
    superseded: list[Announcement] = field(default_factory=list)
    lanes: SharedLanes = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = SharedLanes(
            self.store, SECRET, MonotonicClock(), key_prefix=self.prefix, replica_id=self.name,
            supersede=self.supersede, live=lambda: [(each, 0.0) for each in self.live.values()],
        )  # fmt: skip

    def supersede(self, lane: str, stamp: int) -> None:
        if lane in self.live and self.live[lane].stamp < stamp:
            self.superseded.append(self.live.pop(lane))

    def accept(self, lane: str, session: str, sequence: int, *, announced: bool = True) -> Announcement:
        """Accept a request as a pipeline does: supersede the own older one, then announce."""
        request = Announcement(lane, session, sequence, self.lanes.clock.stamp())
        self.supersede(lane, request.stamp)
        self.live[lane] = request
        if announced:
            self.lanes.accepted(request)
        return request


async def later(*found: Replica) -> None:
    """Wait until a stamp is newer than those before on any replica, also if the clocks were set on a busy machine."""
    await asyncio.sleep(0.02 + 2 * max(each.lanes.clock.error_s for each in found))


@asynccontextmanager
async def replicas(address: str, *names: str, listen: bool = True) -> AsyncIterator[list[Replica]]:
    prefix = new_prefix()
    async with running_store(address, key_prefix=prefix) as store:
        found = [Replica(name, store, prefix) for name in names]
        listeners = [
            ChannelSubscription(store.settings, store.client, each.lanes.channel, each.lanes.receive) for each in found
        ]
        tasks = [asyncio.create_task(listener.run()) for listener in listeners if listen]
        for replica in found:
            replica.lanes.redis_is_back()
        await eventually(lambda: all(each.lanes.clock.is_in_step.is_set() for each in found))
        await eventually(lambda: all(each.is_listening for each in listeners) or not listen)
        yield found
        for task in tasks:
            await cancel_and_wait(task)


async def test_a_newer_request_ends_the_older_one_on_another_replica(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, "a", "b", "c") as (a, b, c):
        older = a.accept("lane", "first editor", 7)
        bystander = c.accept("another lane", "x", 1)
        await later(a, b)
        newer = b.accept("lane", "second editor", 1)
        await eventually(lambda: a.superseded == [older])
        await asyncio.sleep(0.05)
        assert b.live == {"lane": newer}
        assert c.live == {"another lane": bystander}
        assert c.lanes.stats.num_received == 0  # only the replica that served the lane gets a message


async def test_a_request_that_is_announced_late_is_told_so(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, "a", "b") as (a, b):
        older = a.accept("lane", "first", 1, announced=False)
        await later(a, b)
        newer = b.accept("lane", "second", 1)
        await later(a, b)
        a.lanes.accepted(older)
        await eventually(lambda: a.superseded == [older])
        assert b.live == {"lane": newer}
        assert b.superseded == []


async def test_a_session_is_ordered_by_its_sequence_whatever_the_stamps_say(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, "a", "b") as (a, b):
        a.lanes.clock.advance(a.lanes.clock.stamp() + 2_000_000)  # its clock is 2 s ahead
        older = a.accept("lane", "session", 5)
        await later(a, b)
        newer = b.accept("lane", "session", 6)
        assert newer.stamp < older.stamp
        await eventually(lambda: a.superseded == [older])
        await asyncio.sleep(0.05)
        assert b.live == {"lane": newer}
        late = a.accept("lane", "session", 4)
        await eventually(lambda: a.superseded == [older, late])
        assert b.live == {"lane": newer}


async def test_a_lost_message_is_made_up_for(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, "a", "b", listen=False) as (a, b):
        older = a.accept("lane", "first", 1)
        await later(a, b)
        newer = b.accept("lane", "second", 1)
        await eventually(lambda: b.lanes.stats.num_sent == 1)
        assert a.live == {"lane": older}
        a.lanes.announce_live()
        await eventually(lambda: a.superseded == [older])
        assert b.live == {"lane": newer}


@pytest.mark.parametrize("data", [b"", b"nonsense", b"lane session -5 7", b"lane session 5 1e9", b"\xff\xfe s 1 2"])
async def test_a_message_that_is_not_understood_is_ignored(redis_server: RedisServer, data: bytes) -> None:
    async with replicas(redis_server.address, "a") as (a,):
        request = a.accept("lane", "first", 1)
        a.lanes.receive(data)
        assert a.live == {"lane": request}


async def test_a_user_who_repeats_a_sequence_elsewhere_is_served(redis_server: RedisServer) -> None:
    """A client without sequences of its own gives the same number in each call."""
    async with replicas(redis_server.address, "a", "b") as (a, b):
        a.accept("lane", "me", 1)
        await later(a, b)
        request = b.accept("lane", "me", 1)
        await eventually(lambda: len(a.superseded) == 1)
        await asyncio.sleep(0.05)
        assert b.live == {"lane": request}


async def test_names_in_redis_tell_nothing(make_redis: Callable[..., RedisServer]) -> None:
    redis = make_redis()
    async with replicas(redis.address, "a") as (a,):
        a.accept("acme/user/alice", "alices-laptop", 1)
        await eventually(lambda: "lane" in redis.cli("keys", "*"))
        keys = redis.cli("keys", "*:lane:*").split()
        assert len(keys) == 1
        found = " ".join(keys) + "".join(redis.cli("hgetall", key) for key in keys)
        assert "alice" not in found
        assert "acme" not in found
        assert all(0 < int(redis.cli("pttl", key)) <= 60_000 for key in keys)


async def test_requests_of_a_replica_that_never_reached_redis_are_not_compared(redis_server: RedisServer) -> None:
    async with running_store(redis_server.address) as store:
        alone = Replica("alone", store, store.settings.key_prefix)
        request = alone.accept("lane", "first", 1)
        await asyncio.sleep(0.05)
        assert alone.live == {"lane": request}
        assert alone.lanes.stats.num_announced == 0


async def test_a_user_who_stays_is_announced_once_in_a_while(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, "a") as (a,):
        a.accept("lane", "first", 1)
        await eventually(lambda: a.lanes.is_held("lane"))
        for number in range(2, 10):
            a.accept("lane", "first", number)
        assert a.lanes.stats.num_announced == 1


async def test_a_request_that_was_not_announced_still_wins(redis_server: RedisServer) -> None:
    """An older request of the user reaches another replica late, and takes the lane there for a moment."""
    async with replicas(redis_server.address, "a", "b") as (a, b):
        a.accept("lane", "first", 1)
        await eventually(lambda: a.lanes.is_held("lane"))
        late = b.accept("lane", "second", 1, announced=False)
        await later(a, b)
        newest = a.accept("lane", "first", 2)
        assert a.lanes.stats.num_announced == 1
        b.lanes.accepted(late)
        await eventually(lambda: b.superseded == [late])
        assert a.live == {"lane": newest}
        assert len(a.superseded) == 1  # by its own next request


async def test_another_replica_is_suspected_until_redis_has_answered(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, "a", "b") as (a, b):
        assert a.lanes.may_be_elsewhere("lane")
        a.accept("lane", "first", 1)
        await eventually(lambda: not a.lanes.may_be_elsewhere("lane"))
        b.accept("lane", "second", 1)
        await eventually(lambda: a.lanes.may_be_elsewhere("lane"))
        await eventually(lambda: b.lanes.is_held("lane"))
        assert b.lanes.may_be_elsewhere("lane")  # the other one served it a moment ago


async def test_a_restarted_editor_may_begin_to_count_again(redis_server: RedisServer) -> None:
    """On the same replica at once, whose book has decided already."""
    async with replicas(redis_server.address, "a") as (a,):
        a.accept("lane", "session", 50)
        await eventually(lambda: a.lanes.is_held("lane"))
        request = a.accept("lane", "session", 1)
        a.lanes.announce_live()
        await asyncio.sleep(0.05)
        assert a.live == {"lane": request}


async def test_a_message_about_a_restarted_editor_is_believed(redis_server: RedisServer) -> None:
    """An editor that keeps its session id counts from 1 again, on another replica, long after its last request."""
    async with replicas(redis_server.address, "a") as (a,):
        a.accept("lane", "session", 500)
        await eventually(lambda: a.lanes.is_held("lane"))
        session = SECRET.name("session", "session")
        stamp = a.live["lane"].stamp + 6_000_000
        a.lanes.receive(f"{SECRET.name('lane', 'lane')} {session} 1 {stamp}".encode())
        assert a.live == {}
        assert len(a.superseded) == 1


async def test_replicas_keep_their_time_when_redis_loses_it(redis_server: RedisServer) -> None:
    """After a failover the new Redis's clock may be behind; a replica that starts then learns the others' time."""
    async with replicas(redis_server.address, "a", "b") as (a, b):
        ahead_us = 60_000_000
        a.lanes.clock._stamps._offset_us += ahead_us  # as if measured on an earlier Redis
        done = asyncio.Event()
        a.lanes.clock.measure_anew(done.set)
        await asyncio.wait_for(done.wait(), 30)
        done.clear()
        b.lanes.clock.measure_anew(done.set)
        await asyncio.wait_for(done.wait(), 30)
        assert abs(a.lanes.clock.stamp() - b.lanes.clock.stamp()) < 1_000_000
        older = a.accept("lane", "first", 1)
        await asyncio.sleep(0.05)
        newer = b.accept("lane", "second", 1)
        await eventually(lambda: a.superseded == [older])
        assert b.live == {"lane": newer}
