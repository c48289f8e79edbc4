"""Limits the rate of each key. Pure.

A token bucket is stored as a single number: https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm
"""

import math
from collections.abc import Hashable

_SWEEP_AFTER = 4096
ROUNDING = 1e-3
"""Tolerance for rounding errors of sums, as a share of the time between two units: a unit may pass this much early."""


class RateLimiter:
    """Limits the rate of each key (a user, an address), and allows bursts."""

    def __init__(self, units_per_s: float, burst: float, max_wait_s: float = math.inf) -> None:
        """Allow `burst` units at once and `units_per_s` in the long run; a rate of 0 sets no limit.

        A key waits at most `max_wait_s`, however much was charged to it.
        """
        self._interval_s = 1 / units_per_s if units_per_s else 0.0
        self._tolerance_s = self._interval_s * (burst - 1)
        self._max_wait_s = max_wait_s
        self._due_at: dict[Hashable, float] = {}
        """The time at which each key's bucket is full again; a bucket without an entry is full."""
        self._num_to_sweep = _SWEEP_AFTER

    @property
    def num_known(self) -> int:
        """Number of keys whose bucket is remembered."""
        return len(self._due_at)

    def delay_s(self, key: Hashable, now: float) -> float:
        """Return the seconds after which the key may have a unit, 0 for now. Takes none."""
        due_at = self._due_at.get(key)
        if due_at is None:
            return 0.0
        wait_s = max(due_at, now) - self._tolerance_s - now
        return wait_s if wait_s > self._interval_s * ROUNDING else 0.0

    def charge(self, key: Hashable, now: float, units: float = 1.0) -> None:
        """Take units, even if the bucket has fewer; the key then waits longer. A negative number gives them back."""
        if not self._interval_s:
            return
        due_at = max(self._due_at.get(key, now), now) + units * self._interval_s
        self._due_at[key] = min(due_at, now + self._tolerance_s + self._max_wait_s)
        # Full buckets are forgotten after as many charges as there are buckets, so that a charge costs constant time.
        self._num_to_sweep -= 1
        if self._num_to_sweep == 0:
            self._due_at = {key: due_at for key, due_at in self._due_at.items() if due_at > now}
            self._num_to_sweep = max(_SWEEP_AFTER, len(self._due_at))
