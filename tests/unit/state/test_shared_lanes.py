"""Newest wins across replicas: several replicas of one process on one real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from completion_server.state import shared_lanes as module
from completion_server.state.redis_store import RedisStore
from completion_server.state.secret import Secret
from completion_server.state.shared_lanes import KEPT_S, SharedLanes
from completion_server.state.subscription import ChannelSubscription
from tests.support.cancels import cancel_and_wait
from tests.support.clocks import ManualClock
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.unit.state.stores import new_prefix, running_store

SECRET = Secret(b"s" * 32)


@dataclass
class Replica:
    """A replica with a book of its own: the stamps of live requests, by lane."""

    store: RedisStore
    prefix: str
    clock: ManualClock = field(default_factory=ManualClock)
    live: dict[str, int] = field(default_factory=dict)
    superseded: list[tuple[str, int]] = field(default_factory=list)
    lanes: SharedLanes = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = SharedLanes(
            self.store, SECRET, self.clock, key_prefix=self.prefix, supersede=self.supersede, live=self.live.items
        )

    def supersede(self, lane: str, stamp: int) -> None:
        if lane in self.live and self.live[lane] < stamp:
            self.superseded.append((lane, self.live.pop(lane)))

    def accept(self, lane: str, stamp: int, *, announced: bool = True) -> None:
        """Accept a request as a service does: supersede the own older one, then announce."""
        self.supersede(lane, stamp)
        self.live[lane] = stamp
        if announced:
            self.lanes.announce(lane, stamp)


@asynccontextmanager
async def replicas(address: str, num: int, *, repeats: bool = False) -> AsyncIterator[list[Replica]]:
    """Run replicas that listen to each other; those that repeat announce live requests again."""
    async with AsyncExitStack() as stack:
        store, prefix = await stack.enter_async_context(running_store(address)), new_prefix()
        found = [Replica(store, prefix) for _ in range(num)]
        for each in found:
            subscription = ChannelSubscription(store.settings, store.client, each.lanes.channel, each.lanes.receive)
            stack.push_async_callback(cancel_and_wait, asyncio.create_task(subscription.run()))
            if repeats:
                stack.push_async_callback(cancel_and_wait, asyncio.create_task(each.lanes.run()))
            await eventually(lambda subscription=subscription: subscription.is_listening)  # type: ignore[misc]
        yield found


async def passed_on(sender: Replica, *receivers: Replica) -> None:
    """Wait until a message that is sent now has been received: messages of one sender keep their order."""
    before = [each.lanes.num_received for each in receivers]
    sender.lanes.announce("another lane", 1)
    await eventually(lambda: all(each.lanes.num_received > num for each, num in zip(receivers, before, strict=True)))


async def test_a_newer_request_elsewhere_ends_the_older_one_alone(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, 3) as (a, b, c):
        a.accept("lane", 10)
        a.accept("bystander", 10)
        c.accept("lane of c", 10)
        await passed_on(a, b, c)
        b.accept("lane", 20)
        await eventually(lambda: a.superseded == [("lane", 10)])
        await passed_on(b, a, c)
        assert (a.live, b.live, c.live) == ({"bystander": 10}, {"lane": 20}, {"lane of c": 10})
        assert c.superseded == b.superseded == []


async def test_an_older_announcement_that_comes_late_ends_nothing_newer(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, 2) as (a, b):
        a.accept("lane", 10, announced=False)
        b.accept("lane", 20)
        await passed_on(b, a)
        a.lanes.announce("lane", 10)
        await passed_on(a, b)
        assert b.live == {"lane": 20}


async def test_live_requests_are_announced_again(redis_server: RedisServer) -> None:
    """The first announcement of the newer one was lost."""
    async with replicas(redis_server.address, 2, repeats=True) as (a, b):
        a.accept("lane", 10)
        b.accept("lane", 20, announced=False)
        await eventually(lambda: a.superseded == [("lane", 10)])
        assert b.live == {"lane": 20}
        num = b.lanes.num_sent
        await eventually(lambda: b.lanes.num_sent > num + 1)
        assert b.live == {"lane": 20}, "also not by itself"


async def test_a_replica_does_not_hear_itself(redis_server: RedisServer) -> None:
    """A clock that is set back makes a newer request look older."""
    async with replicas(redis_server.address, 2) as (a, b):
        a.accept("lane", 20)
        a.live["lane"] = 10
        await passed_on(a, b)
        await passed_on(b, a)
        assert a.live == {"lane": 10}
        assert a.lanes.num_received == 1


async def test_requests_of_a_moment_share_a_message(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, 2) as (a, b):
        for number in range(100):
            b.accept(f"user {number}", 10)
        for number in range(100):
            a.accept(f"user {number}", 20)
        assert a.lanes.num_sent == 0
        await eventually(lambda: len(b.superseded) == 100)
        assert a.lanes.num_sent == b.lanes.num_received == 1


@pytest.mark.parametrize("message", [b"", b"nonsense", b"12345678", b"12345678" + bytes(23)])
async def test_a_message_that_is_not_understood_is_ignored(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, message: bytes
) -> None:
    async with replicas(redis_server.address, 1) as (a,):
        a.accept("lane", 10)
        a.lanes.receive(message)
        assert a.live == {"lane": 10}
        assert "is not understood" in caplog.text


async def test_names_in_messages_tell_nothing(redis_server: RedisServer) -> None:
    async with running_store(redis_server.address) as store:
        replica, messages = Replica(store, new_prefix()), list[bytes]()
        subscription = ChannelSubscription(store.settings, store.client, replica.lanes.channel, messages.append)
        task = asyncio.create_task(subscription.run())
        await eventually(lambda: subscription.is_listening)
        replica.accept("acme/user/alice", 10)
        await eventually(lambda: bool(messages))
        assert b"alice" not in messages[0]
        assert b"acme" not in messages[0]
        await cancel_and_wait(task)


async def test_another_replica_is_suspected_for_a_minute(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, 2) as (a, b):
        assert a.lanes.may_be_elsewhere("lane")
        a.accept("lane", 10)
        assert a.lanes.may_be_elsewhere("lane"), "a request may have come to another one just before"
        a.clock.at += KEPT_S
        assert not a.lanes.may_be_elsewhere("lane")
        b.accept("lane", 20)
        await eventually(lambda: a.lanes.may_be_elsewhere("lane"))
        a.clock.at += KEPT_S
        assert not a.lanes.may_be_elsewhere("lane")


async def test_the_lanes_that_are_known_are_bounded(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KNOWN", 3)
    async with replicas(redis_server.address, 2) as (a, b):
        for lane in ("first", "second", "third", "first", "fourth"):
            a.accept(lane, 10)
        for lane in ("first", "second", "third", "fourth"):
            b.accept(lane, 20)
        await eventually(lambda: len(a.superseded) == 3)
        assert a.live == {"second": 10}


async def test_without_redis_nothing_is_sent(redis_server: RedisServer) -> None:
    async with replicas(redis_server.address, 1) as (a,):
        a.store.breaker.failed("a test", float("inf"))
        a.accept("lane", 10)
        await asyncio.sleep(0.05)
        assert a.lanes.num_sent == 0
        assert a.live == {"lane": 10}
