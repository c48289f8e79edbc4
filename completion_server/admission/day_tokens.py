"""Counts the tokens of users and tenants on the current day, UTC.

Each replica counts alone, and allows its part: one by the number of living replicas. A restart begins at 0.
"""

from collections import OrderedDict
from collections.abc import Callable

from completion_server.core.checks import DAY_S

_MAX_COUNTS = 100_000
"""Users or tenants whose tokens of the day are known; beyond that the one charged longest ago is forgotten."""


class DayTokens:
    """Counts the tokens of each key on the current day, UTC."""

    def __init__(self, unix_s: Callable[[], float], num_replicas: Callable[[], int]) -> None:
        """`unix_s` returns Unix time in seconds; `num_replicas` the number of replicas that divide what is allowed."""
        self._unix_s = unix_s
        self._num_replicas = num_replicas
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

    def wait_s(self, key: str, allowed: float) -> float:
        """Return the seconds until a key may have tokens again, which is at midnight; 0 for now."""
        now_s = self._begin_day()
        if self._counts.get(key, 0.0) < allowed / self._num_replicas():
            return 0.0
        return (self._day + 1) * DAY_S - now_s

    def _begin_day(self) -> float:
        now_s = self._unix_s()
        day = int(now_s // DAY_S)
        if day != self._day:
            self._day = day
            self._counts.clear()
        return now_s
