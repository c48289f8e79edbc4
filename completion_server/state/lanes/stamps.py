"""Stamps: the place of each request in an order that all replicas share. Pure.

A stamp is a time on Redis's clock in microseconds, estimated from this process's monotonic clock. The clocks of the
replicas' hosts are never compared. Each stamp is also larger than every stamp that this replica has made or seen, so
the order stays an order if Redis's clock jumps: a hybrid logical clock, https://cse.buffalo.edu/tech-reports/2014-04.pdf

The estimate is wrong by at most half a round trip to Redis. Two requests of one lane that came to two replicas within
that time may be ordered either way.
"""

_US = 1_000_000
_FIRST_TIME = 10**12
"""Stamps below this are counts of requests, stamps above it are times: 12 January 1970 in microseconds."""
_DRIFT = 1e-3
"""Growth of the error of the offset, in seconds per second: more than the drift of a quartz clock."""


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
