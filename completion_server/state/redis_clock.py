"""Keeps a replica's stamps in step with those of the others, by Redis's clock.

A stamp is the place of a request in an order that all replicas share: a time on Redis's clock in microseconds,
estimated from this process's monotonic clock. The clocks of the replicas' hosts are never compared. Each stamp is also
larger than every stamp that this replica has made or seen, so the order stays an order if Redis's clock jumps: a hybrid
logical clock, https://cse.buffalo.edu/tech-reports/2014-04.pdf

The estimate is wrong by at most half a round trip to Redis. Two requests of one lane that came to two replicas within
that time may be ordered either way.

Redis's clock is asked several times when Redis is reached, and once a second after that. After a failover the new
Redis's clock may be behind. The replicas go on with the time that they had, and one script tells it to replicas that
start later.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from completion_server.core.clock import Clock
from completion_server.state.store import Store

_US = 1_000_000
_FIRST_TIME = 10**12
"""Stamps below this are counts of requests, stamps above it are times: 12 January 1970 in microseconds."""
_DRIFT = 1e-3
"""Growth of the error of the offset, in seconds per second: more than the drift of a quartz clock."""

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


class StampClock:
    """Makes stamps that rise, in step with the other replicas' stamps while Redis can be reached."""

    def __init__(self) -> None:
        """Begin as a plain counter: a replica that never reached Redis shares no order with another."""
        self._last = 0
        self._offset_us = 0.0
        """Redis's time minus this process's monotonic time."""
        self._error_s = float("inf")
        """The largest error of the offset when it was measured, at `_measured_at`."""
        self._measured_at = 0.0

    def error_s(self, now: float) -> float:
        """Return the largest error of the offset now, in seconds; infinity if it was never measured."""
        return self._error_s + _DRIFT * (now - self._measured_at)

    def time_us(self, now: float) -> int:
        """Return the shared time in microseconds, without regard to stamps that were made or seen."""
        return int(now * _US + self._offset_us)

    @property
    def is_measured(self) -> bool:
        """Whether Redis's clock is known."""
        return self._error_s != float("inf")

    def next(self, now: float) -> int:
        """Return a stamp for the present, larger than all stamps so far. `now` is in clock seconds."""
        self._last = max(self._last + 1, self.time_us(now) if self.is_measured else 0)
        return self._last

    def advance(self, stamp: int) -> None:
        """Take notice of another replica's stamp: later stamps of this replica are larger."""
        self._last = max(self._last, stamp)

    def measure(self, redis_us: int, sent_at: float, received_at: float) -> None:
        """Take notice of the time in an answer to a command sent at `sent_at` and received at `received_at`.

        A time that is later than the known one, beyond both errors, is adopted: the clock has jumped. An earlier one is
        ignored, because stamps of that clock would be older than those that were given.
        """
        error_s = (received_at - sent_at) / 2
        offset_us = redis_us - (sent_at + received_at) / 2 * _US
        known_error_s = self.error_s(received_at)
        jump_us = offset_us - self._offset_us
        has_jumped = self.is_measured and abs(jump_us) > (error_s + known_error_s) * _US
        if jump_us > 0 if has_jumped else error_s <= known_error_s:
            self._offset_us, self._error_s, self._measured_at = offset_us, error_s, received_at


def is_shared(stamp: int) -> bool:
    """Return whether a stamp has a place in the order of all replicas: it was made after the first measurement."""
    return stamp >= _FIRST_TIME


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
