"""Those who wait, in order. Pure; knows nothing of requests but their ids."""

import heapq

Key = tuple[float, int]
"""What the order is by, and the number that decides between equals."""

_MAX_STALE = 64


class Queue:
    """Ids in order of their keys; an id may be removed from anywhere at no cost."""

    def __init__(self) -> None:
        """Begin empty."""
        self._keys: dict[str, Key] = {}
        # What is removed stays in both heaps until it comes up, or there is more of it than of the others.
        self._first: list[tuple[Key, str]] = []
        self._last: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._keys)

    def add(self, request_id: str, key: Key) -> None:
        """Let an id wait."""
        self._keys[request_id] = key
        heapq.heappush(self._first, (key, request_id))
        heapq.heappush(self._last, (_reversed(key), request_id))
        if len(self._first) + len(self._last) > 4 * len(self._keys) + _MAX_STALE:
            self._first = [(key, request_id) for request_id, key in self._keys.items()]
            self._last = [(_reversed(key), request_id) for request_id, key in self._keys.items()]
            heapq.heapify(self._first)
            heapq.heapify(self._last)

    def remove(self, request_id: str) -> None:
        """Let an id wait no longer."""
        del self._keys[request_id]
        if not self._keys:
            self._first.clear()
            self._last.clear()

    def first(self) -> str | None:
        """Return the id with the smallest key."""
        while self._first and self._keys.get(self._first[0][1]) != self._first[0][0]:
            heapq.heappop(self._first)
        return self._first[0][1] if self._first else None

    def last(self) -> str | None:
        """Return the id with the largest key."""
        while self._last and self._keys.get(self._last[0][1]) != _reversed(self._last[0][0]):
            heapq.heappop(self._last)
        return self._last[0][1] if self._last else None


def _reversed(key: Key) -> Key:
    return -key[0], -key[1]
