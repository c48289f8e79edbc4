"""Counts the open sessions of users, tenants or addresses, whose limits may differ and change. Pure."""

from collections import Counter
from collections.abc import Callable

from completion_server.core.errors import Limit


class KeyedSessions:
    """Counts the open sessions of each key."""

    def __init__(self, otherwise: Limit, named: Callable[[str], Limit | None] = lambda _key: None) -> None:
        """`named` returns the limit that a key has now; a key without one has `otherwise`. A limit of 0 sets none."""
        self._otherwise = otherwise
        self._named = named
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of keys with open sessions."""
        return len(self._open)

    def limit(self, key: str) -> Limit:
        """Return the limit of a key."""
        return self._named(key) or self._otherwise

    def num_open(self, key: str) -> int:
        """Return the number of the key's open sessions."""
        return self._open[key]

    def is_full(self, key: str) -> bool:
        """Return whether the key may not open another session."""
        return 0 < self.limit(key).allowed <= self._open[key]

    def enter(self, key: str) -> None:
        """Count another session."""
        self._open[key] += 1

    def leave(self, key: str) -> None:
        """Count a session no longer."""
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
