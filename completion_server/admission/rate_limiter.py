"""Token buckets, one for each key, kept as the one number that GCRA needs. Pure.

GCRA: https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm
"""

import math
from collections.abc import Hashable

_SWEEP_AFTER = 4096
ROUNDING = 1e-3
"""Share of the time between two units that sums of it may be off by, so a unit may pass this much early."""


class RateLimiter:
    """Limits the rate of each key (a user, an address), and lets bursts pass."""

    def __init__(self, units_per_s: float, burst: float, max_wait_s: float = math.inf) -> None:
        """Let `burst` units pass at once, and then `units_per_s`; a rate of 0 lets everything pass.

        However much was charged, a key waits for `max_wait_s` at most.
        """
        self._interval_s = 1 / units_per_s if units_per_s else 0.0
        self._tolerance_s = self._interval_s * (burst - 1)
        self._max_wait_s = max_wait_s
        self._due_at: dict[Hashable, float] = {}
        """When each key's bucket is full again; without an entry it is full."""
        self._num_to_sweep = _SWEEP_AFTER

    @property
    def num_known(self) -> int:
        """Keys whose bucket is remembered."""
        return len(self._due_at)

    def wait_s(self, key: Hashable, now: float) -> float:
        """Take one unit and return 0, or take none and return in how many seconds the key may have one."""
        wait_s = self.delay_s(key, now)
        if not wait_s:
            self.charge(key, now)
        return wait_s

    def delay_s(self, key: Hashable, now: float) -> float:
        """Return in how many seconds the key may have a unit, 0 for now. Takes none."""
        due_at = self._due_at.get(key)
        if due_at is None:
            return 0.0
        wait_s = max(due_at, now) - self._tolerance_s - now
        return wait_s if wait_s > self._interval_s * ROUNDING else 0.0

    def charge(self, key: Hashable, now: float, units: float = 1.0) -> None:
        """Take units, whether or not the bucket has as many: the key waits for longer then."""
        if not self._interval_s:
            return
        due_at = max(self._due_at.get(key, now), now) + units * self._interval_s
        self._due_at[key] = min(due_at, now + self._tolerance_s + self._max_wait_s)
        self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Forget full buckets now and then: as much work as there were charges, so little for each."""
        self._num_to_sweep -= 1
        if self._num_to_sweep == 0:
            self._due_at = {key: due_at for key, due_at in self._due_at.items() if due_at > now}
            self._num_to_sweep = max(_SWEEP_AFTER, len(self._due_at))
