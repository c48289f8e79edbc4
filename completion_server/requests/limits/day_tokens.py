"""Counts the tokens of users and tenants on the current day, UTC. Pure.

Replicas may add up what they count: one takes `changes` from here, adds them to the sums of all, and gives the sums to
`learn`. Between two exchanges each replica counts on from the last sums. Without exchanges it counts alone.
"""

from collections import OrderedDict
from collections.abc import Callable

from completion_server.core.checks import DAY_S

_MAX_COUNTS = 100_000
"""Users or tenants whose tokens of the day are known; beyond that the one charged longest ago is forgotten."""


class DayTokens:
    """Counts the tokens of each key on the current day, UTC."""

    def __init__(self, unix_s: Callable[[], float]) -> None:
        """`unix_s` returns Unix time in seconds."""
        self._unix_s = unix_s
        self._day = 0
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._changes: dict[str, int] = {}
        """What was charged here since the last exchange, for each key that was asked for or charged."""

    def __len__(self) -> int:
        """Return the number of keys that are counted."""
        return len(self._counts)

    def charge(self, key: str, num_tokens: int) -> None:
        """Count tokens; a negative number takes them back."""
        self._begin_day()
        self._changes[key] = self._changes.get(key, 0) + num_tokens
        self._count(key, self._counts.get(key, 0) + num_tokens)

    def wait_s(self, key: str, allowed: float) -> float:
        """Return the seconds until a key may have tokens again, which is at midnight; 0 for now."""
        now_s = self._begin_day()
        num_tokens = self._counts.get(key)
        if num_tokens is not None:
            self._changes.setdefault(key, 0)
        if (num_tokens or 0) < allowed:
            return 0.0
        return (self._day + 1) * DAY_S - now_s

    def changes(self) -> tuple[int, dict[str, int]]:
        """Return the day as a number, and the tokens to add to the sum of each key, or to give to `restore`."""
        self._begin_day()
        changes, self._changes = self._changes, {}
        return self._day, changes

    def restore(self, day: int, key: str, num_tokens: int) -> None:
        """Take back a change that could not be added."""
        if day == self._day and key in self._counts:
            self._changes[key] = self._changes.get(key, 0) + num_tokens

    def learn(self, day: int, key: str, num_tokens: int) -> None:
        """Take the sum of a key over all replicas, in which all changes that were taken from here are."""
        if day == self._day:
            self._count(key, num_tokens + self._changes.get(key, 0))

    def _count(self, key: str, num_tokens: int) -> None:
        self._counts[key] = max(0, num_tokens)
        self._counts.move_to_end(key)
        if len(self._counts) > _MAX_COUNTS:
            forgotten, _num_tokens = self._counts.popitem(last=False)
            self._changes.pop(forgotten, None)

    def _begin_day(self) -> float:
        now_s = self._unix_s()
        day = int(now_s // DAY_S)
        if day != self._day:
            self._day = day
            self._counts.clear()
            self._changes.clear()
        return now_s
