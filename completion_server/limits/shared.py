"""The limits that this replica shares with others, and the interface of the board where they meet.

No request waits for the board: shares.py has the rules by which a replica decides alone.
"""

import asyncio
import contextlib
import math
import secrets
from collections.abc import Sequence
from typing import Protocol

from completion_server.core.clock import Clock
from completion_server.limits.local import LocalLimiters, LocalSessions, RateLimiter
from completion_server.limits.replicas import Replica, Replicas
from completion_server.limits.shares import DemandReport, SharedLimiter, SharedRates, SharedSessions

HEARTBEAT_S = 0.5
TICK_S = 0.02
_LEAVE_S = 0.5


class Board(Protocol):
    """Where replicas report to, such as Redis."""

    async def meet(self, replica: Replica, *, leaves: bool = False) -> Sequence[Replica] | None:
        """Send a heartbeat, or take it back; return those before it. None if there is no answer."""
        ...

    async def report(self, replica: Replica, reports: Sequence[DemandReport]) -> None:
        """Send reports and settle them."""
        ...


class SharedLimits:
    """Makes limits that replicas share, and reports them."""

    def __init__(self, board: Board, clock: Clock, replica_id: str, assumed_replicas: int = 1) -> None:
        """Begin as one of `assumed_replicas`; `run` reports to the board."""
        self._board = board
        self._clock = clock
        self.replicas = Replicas(Replica(replica_id, secrets.token_hex(8), 0.0), clock, assumed_replicas)
        self._limiters: list[SharedLimiter] = []
        self._retired: list[SharedLimiter] = []
        self._next_beat_at = -math.inf

    def rate(self, kind: str, units_per_s: float, burst: float, max_wait_s: float = math.inf) -> SharedRates:
        """Return a limiter of rates."""
        limiter = SharedRates(kind, units_per_s, burst, max_wait_s, self.replicas)
        self._limiters.append(limiter)
        return limiter

    def sessions(self, kind: str, limit: int) -> SharedSessions:
        """Return a limiter of open sessions."""
        limiter = SharedSessions(kind, limit, self.replicas)
        self._limiters.append(limiter)
        return limiter

    def retire(self, limiter: object) -> None:
        """Leave the shares of a limiter that is used no more to the other replicas."""
        self._retired += [each for each in self._limiters if each is limiter]
        self._limiters = [each for each in self._limiters if each is not limiter]

    @property
    def num_replicas(self) -> int:
        """Number of living replicas, this one included, when Redis answered last."""
        return self.replicas.num_alive

    @property
    def num_shares(self) -> int:
        """Number of keys of which this replica has a share; each limit has its own."""
        return sum(len(limiter) for limiter in self._limiters)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.exchange()
            await asyncio.sleep(TICK_S)

    async def exchange(self) -> None:
        """Send what is due, and wait for the answers."""
        now = self._clock.now()
        if now >= self._next_beat_at:
            self._next_beat_at = now + HEARTBEAT_S
            if (found := await self._board.meet(self.replicas.own)) is not None:
                self.replicas.find(found)
        retired, self._retired = self._retired, []
        reports = [report for limiter in retired for report in limiter.give_back()]
        reports += [report for limiter in self._limiters for report in limiter.reports(now)]
        if self.replicas.is_shared:
            await self._board.report(self.replicas.own, reports)
        else:
            for report in reports:
                report.settle(None)

    async def leave(self) -> None:
        """Leave all shares to the other replicas. Nothing is sent afterwards."""
        self._next_beat_at = math.inf
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._board.meet(self.replicas.own, leaves=True)
                reports = [report for limiter in self._limiters for report in limiter.give_back()]
                await self._board.report(self.replicas.own, reports)


Limiters = LocalLimiters | SharedLimits
"""Makes the limiters of a server: those of this process, or shared with other replicas."""
Limiter = RateLimiter | SharedRates
SessionLimiter = LocalSessions | SharedSessions
