"""Three replicas that share limits in a real Redis, one of which is cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from completion_server.admission.ledger import Ledger
from completion_server.admission.standing import Phase
from completion_server.core.clock import MonotonicClock
from completion_server.state.leases import LeaseSync
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.unit.state.stores import new_prefix, running_store

UNITS_PER_S, BURST, LEASE = 20.0, 40, 20
CLOCK = MonotonicClock()


class Replica:
    """A replica's share of one limit, and its own way to Redis."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.ledger = Ledger(CLOCK, 3)
        self.limiter = self.ledger.rate("requests", UNITS_PER_S, BURST)
        self.sync: LeaseSync

    @property
    def phase(self) -> Phase:
        return self.ledger.phase


@asynccontextmanager
async def running_replicas(redis_server: RedisServer, prefix: str) -> AsyncIterator[list[Replica]]:
    """Run three replicas, and yield them when each one knows the others."""
    async with AsyncExitStack() as stack:
        replicas = []
        for number in range(3):
            replica = Replica(await stack.enter_async_context(FaultProxy(redis_server.address)))
            store = await stack.enter_async_context(running_store(replica.proxy.address))
            replica.sync = LeaseSync(
                store, replica.ledger, CLOCK, lambda *names: ":".join((prefix, *names)), f"r{number}"
            )
            task = asyncio.create_task(replica.sync.run())
            stack.push_async_callback(asyncio.wait, [task])
            stack.callback(task.cancel)
            replicas.append(replica)
        await eventually(lambda: all(replica.sync.num_alive == 3 for replica in replicas))
        yield replicas


@dataclass
class Demand:
    """Takes all that replicas give, and finds the worst excess over the rate in any window."""

    replicas: list[Replica]
    level: float = 0.0
    worst: float = 0.0
    at: float = field(default_factory=CLOCK.now)

    async def last(self, seconds: float) -> list[int]:
        """Take for a time, and return how much each replica gave."""
        taken, ends = [0] * len(self.replicas), CLOCK.now() + seconds
        while CLOCK.now() < ends:
            for number, replica in enumerate(self.replicas):
                while not replica.limiter.delay_s("u", now := CLOCK.now()):
                    replica.limiter.charge("u", now)
                    taken[number] += 1
                    self.level = max(0.0, self.level - (now - self.at) * UNITS_PER_S) + 1
                    self.at, self.worst = now, max(self.worst, self.level)
            await asyncio.sleep(0.01)
        return taken


async def test_the_sum_holds_while_a_replica_is_cut_off_and_the_parts_come_back(redis_server: RedisServer) -> None:
    async with running_replicas(redis_server, new_prefix()) as replicas:
        demand = Demand(replicas)
        assert min(await demand.last(1.5)) > 0
        replicas[0].proxy.faults.black_hole = True
        await demand.last(3.5)
        assert replicas[0].phase is Phase.ALONE
        assert [replicas[1].phase, replicas[2].phase] == [Phase.SHARED, Phase.SHARED]
        alone, *others = await demand.last(1.5)
        assert alone > 0
        assert min(others) > 0
        assert {each.id: each.is_alive for each in replicas[1].sync.replicas} == {"r0": False, "r1": True, "r2": True}
        await replicas[0].proxy.heal()
        await eventually(lambda: replicas[0].phase is Phase.SHARED and replicas[1].sync.num_alive == 3)
        await demand.last(1.0)
        assert demand.worst <= BURST + LEASE + 1


async def test_a_replica_that_leaves_is_not_waited_for(redis_server: RedisServer) -> None:
    prefix = new_prefix()
    async with running_replicas(redis_server, prefix) as replicas:
        replicas[2].limiter.charge("u", CLOCK.now())
        await eventually(lambda: redis_server.cli("HGET", f"{prefix}:requests:u", "h:r2") != "")
        await replicas[2].sync.leave()
        await eventually(lambda: replicas[0].ledger.num_replicas == 2)
        assert redis_server.cli("HGET", f"{prefix}:requests:u", "h:r2") == ""
