"""How much one user may ask: a token bucket for each, kept as the one number that GCRA needs. Pure.

GCRA: https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm
"""

from collections.abc import Hashable

_SWEEP_AFTER = 4096
ROUNDING = 1e-3
"""Of the time between two requests: as much as sums of it may be off, so one may pass this much early."""


class FairUse:
    """Lets each user ask at a rate, and in bursts."""

    def __init__(self, requests_per_s: float, burst: int) -> None:
        """Let `burst` requests come at once, and then `requests_per_s`; a rate of 0 lets everything pass."""
        self._interval_s = 1 / requests_per_s if requests_per_s else 0.0
        self._tolerance_s = self._interval_s * (burst - 1)
        self._due_at: dict[Hashable, float] = {}
        """When each user's bucket is full again; without an entry it is."""
        self._num_to_sweep = _SWEEP_AFTER

    @property
    def num_known(self) -> int:
        """Users whose bucket is remembered."""
        return len(self._due_at)

    def wait_s(self, user: Hashable, now: float) -> float:
        """Take a request into account and return 0, or return in how many seconds the user may ask again."""
        if not self._interval_s:
            return 0.0
        due_at = max(self._due_at.get(user, now), now)
        wait_s = due_at - self._tolerance_s - now
        if wait_s > self._interval_s * ROUNDING:
            return wait_s
        self._due_at[user] = due_at + self._interval_s
        self._sweep(now)
        return 0.0

    def _sweep(self, now: float) -> None:
        """Forget full buckets now and then: as much work as there were requests, so little for each."""
        self._num_to_sweep -= 1
        if self._num_to_sweep == 0:
            self._due_at = {user: due_at for user, due_at in self._due_at.items() if due_at > now}
            self._num_to_sweep = max(_SWEEP_AFTER, len(self._due_at))
