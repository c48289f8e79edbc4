"""Counts the open sessions of users, tenants or addresses, whose limits may differ and change. Pure."""

from collections import Counter
from collections.abc import Callable

from completion_server.core.errors import Limit
from completion_server.limits.shared import SessionLimiter

SessionLimit = tuple[SessionLimiter, Limit]
"""A limiter of sessions, and the limit that it has."""


def choose_by(
    named: Callable[[str], SessionLimit | None] | None, otherwise: SessionLimit
) -> Callable[[str], SessionLimit]:
    """Return the choice of a limiter by `named`, and of `otherwise` where that has none."""
    if named is None:
        return lambda _key: otherwise
    return lambda key: named(key) or otherwise


class KeyedSessions:
    """Counts the open sessions of each key in the limiter that is for this key now."""

    def __init__(self, choose: Callable[[str], SessionLimit]) -> None:
        """`choose` returns the limiter of a key. Call `move` after it has changed its choice."""
        self._choose = choose
        self._open: Counter[str] = Counter()
        self._counted_in: dict[str, SessionLimiter] = {}
        """The limiters of keys with open sessions."""

    def limit(self, key: str) -> Limit:
        """Return the limit of a key."""
        return self._choose(key)[1]

    def num_open(self, key: str) -> int:
        """Return the number of the key's open sessions on this replica."""
        return self._open[key]

    def is_full(self, key: str) -> bool:
        """Return whether the key may not open another session."""
        return self._choose(key)[0].is_full(key)

    def more_in_s(self, key: str) -> float | None:
        """Return the seconds after which a full key may have more sessions; None if it has as many as are allowed."""
        return self._choose(key)[0].more_in_s(key)

    def enter(self, key: str) -> None:
        """Count another session."""
        limiter = self._counted_in.setdefault(key, self._choose(key)[0])
        limiter.enter(key)
        self._open[key] += 1

    def leave(self, key: str) -> None:
        """Count a session no longer."""
        self._counted_in[key].leave(key)
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key], self._counted_in[key]

    def move(self) -> None:
        """Count all open sessions in the limiters that are chosen now."""
        for key, num_open in self._open.items():
            before, now = self._counted_in[key], self._choose(key)[0]
            if now is not before:
                self._counted_in[key] = now
                for _ in range(num_open):
                    before.leave(key)
                    now.enter(key)
