"""Front ends of one group in one process, with books that are dictionaries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from completion_server.core.clock import MonotonicClock
from completion_server.state.lanes import Announcement
from completion_server.state.local.bus import LocalBus
from completion_server.state.local.group import LocalGroup, LocalParent
from completion_server.state.local.member import LocalMember
from tests.support.cancels import cancel_and_wait

CLOCK = MonotonicClock()


@asynccontextmanager
async def running(bus: LocalBus) -> AsyncIterator[LocalBus]:
    """Run a bus, and yield it when it is open."""
    task = asyncio.create_task(bus.run())
    await asyncio.wait_for(bus.is_open.wait(), 30)
    yield bus
    await cancel_and_wait(task)


@dataclass
class FrontEnd:
    """A front end: its live requests by lane."""

    group: LocalGroup
    live: dict[str, Announcement] = field(default_factory=dict)
    superseded: list[Announcement] = field(default_factory=list)
    arrived_at: float = 0.0
    """When its live requests came."""
    has_superseded: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.member = LocalMember(
            self.group, CLOCK, supersede=self.supersede,
            live=lambda: [(each, self.arrived_at) for each in self.live.values()],
        )  # fmt: skip
        self.lanes = self.member.lanes

    def supersede(self, lane: str, stamp: int) -> None:
        if lane in self.live and self.live[lane].stamp < stamp:
            self.superseded.append(self.live.pop(lane))
            self.has_superseded.set()

    def accept(self, lane: str, session: str, sequence: int, *, announced: bool = True) -> Announcement:
        """Accept a request as a service does: supersede the own older one, then announce."""
        request = Announcement(lane, session, sequence, self.lanes.stamp())
        self.supersede(lane, request.stamp)
        self.live[lane] = request
        if announced:
            self.lanes.accepted(request)
        return request


@asynccontextmanager
async def made_parent(num: int) -> AsyncIterator[LocalParent]:
    """Run a parent, and remove what it made at the end."""
    parent = LocalParent(num, CLOCK)
    task = asyncio.create_task(parent.run())
    await asyncio.wait_for(parent.bus.is_open.wait(), 30)
    yield parent
    await cancel_and_wait(task)
    parent.close()


@asynccontextmanager
async def front_ends(num: int) -> AsyncIterator[list[FrontEnd]]:
    """Run front ends whose old requests are not looked at again unless a test does it."""
    async with AsyncExitStack() as stack:
        parent = await stack.enter_async_context(made_parent(num))
        found = [FrontEnd(parent.group(place)) for place in range(num)]
        for each in found:
            await stack.enter_async_context(running(each.member.bus))
        yield found


def hold(group: LocalGroup, pipe: Connection) -> None:
    """Be a front end with a live request in a process of its own, until that is superseded."""

    async def main() -> None:
        front_end = FrontEnd(group)
        async with running(front_end.member.bus):
            front_end.accept("lane", f"session {group.place}", 1)
            looking = asyncio.create_task(front_end.lanes.run())
            pipe.send("ready")
            await asyncio.wait_for(front_end.has_superseded.wait(), 60)
            pipe.send("superseded")
            await cancel_and_wait(looking)

    asyncio.run(main())
