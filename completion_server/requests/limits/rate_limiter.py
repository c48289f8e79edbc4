"""Limits the rate of each key. Pure.

A token bucket is stored as a single number: https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

from completion_server.core.errors import Limit
from completion_server.requests.limits.day_tokens import DayTokens

MAX_WAIT_S = 10.0
"""The longest wait. Tokens are computed before they can be charged, so the debt has no other bound."""
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


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that a request exceeds."""

    wait_s: float
    """Seconds after which the caller may retry."""
    limit: Limit
    peer: str = ""
    """The address whose limit is exceeded; "" if it is another limit."""

    @property
    def retry_after_ms(self) -> int:
        """`wait_s` in whole milliseconds."""
        return math.ceil(self.wait_s * 1000)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of users, tenants or addresses that have the same ones."""

    requests: RateLimiter
    tokens: RateLimiter
    requests_limit: Limit
    tokens_limit: Limit
    day: DayTokens | None = None
    """None for as many tokens a day as there are."""
    day_limit: Limit | None = None
    base: "RateLimits | None" = None
    """The limits that it has where no file gives others."""

    def excess(self, key: str, now: float, peer: str = "") -> Excess | None:
        """Return the limit that this key exceeds, the one with the longest wait."""
        if self.day is not None and self.day_limit is not None:
            day_wait_s = self.day.wait_s(key, self.day_limit.allowed)
            if day_wait_s:
                return Excess(day_wait_s, self.day_limit, peer)
        wait_s, tokens_wait_s = self.requests.delay_s(key, now), self.tokens.delay_s(key, now)
        if tokens_wait_s > wait_s:
            return Excess(tokens_wait_s, self.tokens_limit, peer)
        return Excess(wait_s, self.requests_limit, peer) if wait_s else None

    def charge_tokens(self, key: str, now: float, num_tokens: int) -> None:
        """Charge tokens; a negative number refunds them."""
        self.tokens.charge(key, now, num_tokens)
        if self.day is not None:
            self.day.charge(key, num_tokens)
