"""Keeps a replica's stamps in step with those of the others, by Redis's clock.

Redis's clock is asked several times when Redis is reached, and once a second after that. After a failover the new
Redis's clock may be behind. The replicas go on with the time that they had, and one script tells it to replicas that
start later.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from completion_server.core.clock import Clock
from completion_server.state.lanes.stamps import StampClock
from completion_server.state.store import Store

_EVERY_S = 1.0
_FIRST = 5
"""Number of measurements before requests are announced. The answer with the shortest round trip gives the offset."""
_TOLERANCE_US = 100_000
"""Largest lead of a replica's time over Redis's clock that counts as a measurement error. A larger lead means that the
clock of a new Redis is behind that of the previous one."""
_AHEAD_KEPT_MS = 600_000

_TIME = b"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ahead = tonumber(redis.call('GET', KEYS[1]) or 0)
if tonumber(ARGV[1]) - now > ahead + tonumber(ARGV[2]) then ahead = tonumber(ARGV[1]) - now end
if ahead > 0 then redis.call('SET', KEYS[1], string.format('%.0f', ahead), 'PX', ARGV[3]) end
return now + ahead
"""
"""Takes a replica's shared time in microseconds, 0 if it has none. Returns the time that all replicas share: the time
of Redis plus the lead of the replicas over it."""


class RedisClock:
    """Makes stamps that follow the clock of Redis."""

    def __init__(self, store: Store, clock: Clock, key: str) -> None:
        """Ask `store` for the time; `key` holds the lead of the replicas' time over that of Redis."""
        self._store = store
        self._clock = clock
        self._key = key
        self._stamps = StampClock()
        self.is_in_step = asyncio.Event()
        """Set once the stamps of this replica can be compared with those of the others."""

    @property
    def error_s(self) -> float:
        """How far stamps may be off those of others now, in seconds; infinity if that is not known yet."""
        return self._stamps.error_s(self._clock.now())

    def stamp(self) -> int:
        """Return the stamp of a request that is accepted now."""
        return self._stamps.next(self._clock.now())

    def advance(self, stamp: int) -> None:
        """Take notice of another replica's stamp."""
        self._stamps.advance(stamp)

    def measure_anew(self, then: Callable[[], None]) -> None:
        """Measure several times and call `then`: Redis was away, or this replica has just started."""
        self._ask(_FIRST - 1, then)

    async def run(self) -> None:
        """Measure again and again until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            if self._store.is_available and self._stamps.is_measured:
                self._ask(0, lambda: None)

    def _ask(self, num_left: int, then: Callable[[], None]) -> None:
        now = self._clock.now()
        own = self._stamps.time_us(now) if self._stamps.is_measured else 0
        reply = self._store.call_nowait("EVAL", _TIME, 1, self._key, own, _TOLERANCE_US, _AHEAD_KEPT_MS)
        reply.add_done_callback(partial(self._answered, num_left, then, now))

    def _answered(self, num_left: int, then: Callable[[], None], sent_at: float, reply: "asyncio.Future[Any]") -> None:
        if reply.cancelled() or reply.exception() is not None:
            return  # Redis is away again
        self._stamps.measure(int(reply.result()), sent_at, self._clock.now())
        if num_left:
            self._ask(num_left - 1, then)
        else:
            self.is_in_step.set()
            then()
