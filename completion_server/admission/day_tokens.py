"""Counts the tokens of users and tenants on the current day, UTC.

Each server counts alone, and allows its part: one by the number of servers that live. A restart begins at 0. The front
ends of one server count together.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from completion_server.core.checks import DAY_S

_MAX_COUNTS = 100_000
"""Users or tenants whose tokens of the day are known; beyond that the one charged longest ago is forgotten."""


class DayTotals(Protocol):
    """The counts of the other front ends of this server."""

    @property
    def num_front_ends(self) -> int:
        """Number of living front ends, this one included."""
        ...

    def of_others(self, key: str, day: int, own: float, /) -> float:
        """Take the own count of a key on a day; return that of the others, as far as it is known."""
        ...


class DayTokens:
    """Counts the tokens of each key on the current day, UTC."""

    def __init__(
        self,
        unix_s: Callable[[], float],
        num_parts: Callable[[], float],
        totals: DayTotals | None = None,
        kind: str = "",
    ) -> None:
        """`unix_s` returns Unix time in seconds; `num_parts` the number of servers that divide what is allowed.

        `totals` has the counts of other front ends; `kind` tells those of keys with the same name apart.
        """
        self._unix_s = unix_s
        self._num_parts = num_parts
        self._totals = totals
        self._kind = kind
        self._day = 0
        self._counts: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that are counted."""
        return len(self._counts)

    def charge(self, key: str, num_tokens: float) -> None:
        """Count tokens; a negative number takes them back."""
        self._begin_day()
        self._counts[key] = max(0.0, self._counts.pop(key, 0.0) + num_tokens)
        if len(self._counts) > _MAX_COUNTS:
            self._counts.popitem(last=False)
        self._of_others(key)

    def wait_s(self, key: str, allowed: float) -> float:
        """Return the seconds until a key may have tokens again, which is at midnight; 0 for now."""
        now_s = self._begin_day()
        if self._counts.get(key, 0.0) + self._of_others(key) < allowed / self._num_parts():
            return 0.0
        return (self._day + 1) * DAY_S - now_s

    def _of_others(self, key: str) -> float:
        own = self._counts.get(key, 0.0)
        return 0.0 if self._totals is None else self._totals.of_others(f"{self._kind}:{key}", self._day, own)

    def _begin_day(self) -> float:
        now_s = self._unix_s()
        day = int(now_s // DAY_S)
        if day != self._day:
            self._day = day
            self._counts.clear()
        return now_s
