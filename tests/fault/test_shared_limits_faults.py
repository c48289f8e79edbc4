"""Three replicas that share limits in a real Redis, one of which is cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from completion_server.core.clock import MonotonicClock
from completion_server.limits.replicas import Replica as Seen
from completion_server.limits.shared import SharedLimits
from completion_server.state.limit_reports import LimitReports
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.support.shared_limits import Excess
from tests.unit.state.stores import new_prefix, running_store

UNITS_PER_S, BURST = 20.0, 40
CLOCK = MonotonicClock()


@dataclass
class Replica:
    """A replica's share of one limit, and its own way to Redis."""

    proxy: FaultProxy
    shared: SharedLimits

    def __post_init__(self) -> None:
        self.limiter = self.shared.rate("requests", UNITS_PER_S, BURST)

    @property
    def is_shared(self) -> bool:
        return self.shared.replicas.is_shared


@asynccontextmanager
async def running_replicas(redis_server: RedisServer, prefix: str) -> AsyncIterator[list[Replica]]:
    """Run three replicas, and yield them when each one knows the others."""
    async with AsyncExitStack() as stack:
        replicas = []
        for number in range(3):
            proxy = await stack.enter_async_context(FaultProxy(redis_server.address))
            store = await stack.enter_async_context(running_store(proxy.address, timeout_ms=2_000))
            reports = LimitReports(store, lambda *names: ":".join((prefix, *names)))
            replicas.append(Replica(proxy, SharedLimits(reports, CLOCK, f"r{number}", 3)))
            task = asyncio.create_task(replicas[-1].shared.run())
            stack.push_async_callback(asyncio.wait, [task], timeout=5.0)
            stack.callback(task.cancel)
        await eventually(lambda: all(len(replica.shared.replicas.seen) == 3 for replica in replicas))
        yield replicas


@dataclass
class Demand:
    """Takes all that replicas give, and finds the worst excess over the rate in any window."""

    replicas: list[Replica]
    excess: Excess = field(default_factory=lambda: Excess(UNITS_PER_S, CLOCK.now()))

    async def last(self, seconds: float) -> list[int]:
        """Take for a time, and return how much each replica gave."""
        taken, ends = [0] * len(self.replicas), CLOCK.now() + seconds
        while CLOCK.now() < ends:
            for number, replica in enumerate(self.replicas):
                while not replica.limiter.delay_s("u", now := CLOCK.now()):
                    replica.limiter.charge("u", now)
                    taken[number] += 1
                    self.excess.add(1, now)
            await asyncio.sleep(0.01)
        return taken


async def test_a_replica_that_is_cut_off_goes_on_with_its_share(redis_server: RedisServer) -> None:
    async with running_replicas(redis_server, new_prefix()) as replicas:
        demand = Demand(replicas)
        assert min(await demand.last(1.5)) > 0
        assert demand.excess.worst <= 3 * (BURST + UNITS_PER_S) + 3
        replicas[0].proxy.faults.black_hole = True
        await eventually(lambda: not replicas[0].is_shared)
        assert [replicas[1].is_shared, replicas[2].is_shared] == [True, True]
        assert min(await demand.last(2.0)) > 0
        await eventually(lambda: [each.is_alive for each in sorted_seen(replicas[1])] == [False, True, True])
        await replicas[0].proxy.heal()
        await eventually(lambda: replicas[0].is_shared and all(each.is_alive for each in sorted_seen(replicas[1])))
        assert demand.excess.worst <= 3 * (BURST + UNITS_PER_S) + 3


async def test_a_replica_that_leaves_is_not_waited_for(redis_server: RedisServer) -> None:
    prefix = new_prefix()
    async with running_replicas(redis_server, prefix) as replicas:
        replicas[2].limiter.charge("u", CLOCK.now(), 5.0)
        await eventually(lambda: redis_server.cli("HGET", f"{prefix}:requests:u", "r:r2") != "")
        await replicas[2].shared.leave()
        await eventually(lambda: replicas[0].shared.replicas.num_alive == 2)
        assert redis_server.cli("HGET", f"{prefix}:requests:u", "r:r2") == ""


def sorted_seen(replica: Replica) -> list[Seen]:
    return sorted(replica.shared.replicas.seen, key=lambda each: each.id)
