"""Time as the rooms see it: monotonic seconds from an injected clock, and deadlines as absolute points on it."""

import math
import time
from dataclasses import dataclass
from typing import Protocol


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


@dataclass(frozen=True, slots=True)
class Deadline:
    """An absolute point in time after which an answer is worth nothing."""

    at: float
    """Seconds on the clock that made it; infinite for no deadline."""

    @classmethod
    def after(cls, seconds: float | None, now: float) -> "Deadline":
        """Return the deadline `seconds` from `now`; never, where `seconds` is None."""
        return cls(math.inf if seconds is None else now + seconds)

    def remaining_s(self, now: float) -> float:
        """Return the seconds left, negative once passed."""
        return self.at - now

    def is_past(self, now: float) -> bool:
        """Return whether the deadline is reached."""
        return now >= self.at


NEVER = Deadline(math.inf)
