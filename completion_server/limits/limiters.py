"""Limits of rates and of open sessions, behind one interface: those of this process, or shared with replicas."""

import math
from collections import Counter
from typing import Protocol

from completion_server.limits.rate_limiter import RateLimiter


class Limiter(Protocol):
    """Limits the rate of each key and allows bursts, see `RateLimiter`."""

    def delay_s(self, key: str, now: float, /) -> float:
        """Return the seconds after which the key may have a unit, 0 for now. Takes none."""
        ...

    def charge(self, key: str, now: float, units: float = 1.0, /) -> None:
        """Take units, even if fewer are left; a negative number gives them back."""
        ...


class SessionLimiter(Protocol):
    """Limits the open sessions of each key."""

    def __len__(self) -> int:
        """Return the number of keys with open sessions."""
        ...

    def num_open(self, key: str) -> int:
        """Return the number of the key's open sessions on this replica."""
        ...

    def is_full(self, key: str) -> bool:
        """Return whether the key may not open another session."""
        ...

    def more_in_s(self, key: str) -> float | None:
        """Return the seconds after which a full key may have more sessions; None if it has as many as are allowed."""
        ...

    def enter(self, key: str) -> None:
        """Count another session."""
        ...

    def leave(self, key: str) -> None:
        """Count a session no longer."""
        ...


class Limiters(Protocol):
    """Makes the limiters of a server."""

    def rate(self, kind: str, units_per_s: float, burst: float, max_wait_s: float = math.inf) -> Limiter:
        """Return a limiter of rates. A rate of 0 sets no limit. `kind` names it, in at most 16 letters."""
        ...

    def sessions(self, kind: str, limit: int) -> SessionLimiter:
        """Return a limiter of open sessions. A limit of 0 sets none."""
        ...


class LocalSessions:
    """Counts the sessions of each key in this process."""

    def __init__(self, limit: int) -> None:
        """Allow `limit` sessions of each key; 0 sets no limit."""
        self._limit = limit
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of keys with open sessions."""
        return len(self._open)

    def num_open(self, key: str) -> int:
        """Return the number of the key's open sessions."""
        return self._open[key]

    def is_full(self, key: str) -> bool:
        """Return whether the key may not open another session."""
        return 0 < self._limit <= self._open[key]

    def more_in_s(self, _key: str) -> float | None:
        """Return None: all sessions that are allowed may be opened here."""
        return None

    def enter(self, key: str) -> None:
        """Count another session."""
        if self._limit:
            self._open[key] += 1

    def leave(self, key: str) -> None:
        """Count a session no longer."""
        if self._limit:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


class LocalLimiters:
    """Makes limiters that know this process only."""

    def rate(self, _kind: str, units_per_s: float, burst: float, max_wait_s: float = math.inf) -> Limiter:
        """Return a limiter of rates."""
        return RateLimiter(units_per_s, burst, max_wait_s)

    def sessions(self, _kind: str, limit: int) -> SessionLimiter:
        """Return a limiter of open sessions."""
        return LocalSessions(limit)
