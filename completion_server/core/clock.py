"""Clocks and deadlines: monotonic seconds from an injected clock, and deadlines as absolute points on it."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from completion_server.core.immutable import immutable


class Clock(Protocol):
    """A source of monotonic time."""

    def now(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        ...


class MonotonicClock:
    """The process's own monotonic clock.

    Not the event loop's `time()`: uvloop caches that once an iteration, in whole milliseconds.
    """

    def now(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        return time.monotonic()


def unix_offset_s(clock: Clock) -> float:
    """Return Unix time minus clock time in seconds. Added to a time of the clock, it gives wall-clock time."""
    return time.time() - clock.now()


@immutable
class Deadline:
    """An absolute point in time after which an answer has no value."""

    at: float
    """Clock seconds; infinite for no deadline."""

    @classmethod
    def after(cls, seconds: float | None, now: float) -> "Deadline":
        """Return the deadline `seconds` from `now`; `None` means no deadline."""
        return cls(math.inf if seconds is None else now + seconds)

    def is_past(self, now: float) -> bool:
        """Return whether the deadline is reached."""
        return now >= self.at


NEVER = Deadline(math.inf)


class Alarm:
    """Calls a function once, at the earliest of the times that it was set to."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        """Prepare to call `ring` on the running event loop. The alarm is not set yet."""
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def set_nowait(self, at: float | None) -> None:
        """Ring at clock time `at`, unless the alarm is set to an earlier time. None changes nothing."""
        if at is None or at >= self._at:
            return
        self.clear()
        self._at = at
        delay_s = max(0.0, at - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def clear(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _fire(self) -> None:
        self._timer, self._at = None, math.inf
        self._ring()
