"""The queues of requests that wait for a slot: one for each trigger, sorted by an order. Pure.

In every order EXPLICIT goes before AUTOMATIC, and AUTOMATIC before PREFETCH. docs/scheduling.md compares the orders.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping

from completion_server.core.request import Trigger
from completion_server.scheduling.requests import LiveRequest

QueueOrder = Callable[[LiveRequest], float]
"""The request with the smallest number goes first; it must not change while the request waits."""


def first_come(request: LiveRequest) -> float:
    """Serve the oldest request first."""
    return request.arrived_at


def newest_first(request: LiveRequest) -> float:
    """Serve the newest request first. Most of the newest are about to be superseded."""
    return -request.arrived_at


def earliest_deadline(request: LiveRequest) -> float:
    """Serve the request with the earliest deadline first. A user who has waited long has paused to read the answer."""
    return request.ttft_deadline


ORDERS: Mapping[str, QueueOrder] = {
    "earliest_deadline": earliest_deadline,
    "first_come": first_come,
    "newest_first": newest_first,
}
"""The orders by their names in the configuration."""

Key = tuple[float, ...]
"""The smallest goes first. In the queue of a trigger it is the value of the order, and a number that breaks ties."""

_MAX_STALE = 64


class Queue:
    """Request ids in the order of their keys; an id may be removed from anywhere at no cost."""

    def __init__(self) -> None:
        """Begin empty."""
        self._keys: dict[str, Key] = {}
        # Removed ids stay in both heaps until they come to the top, or until they outnumber the waiting ones.
        self._first: list[tuple[Key, str]] = []
        self._last: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._keys)

    def __contains__(self, request_id: str) -> bool:
        """Return whether an id waits."""
        return request_id in self._keys

    @property
    def num_kept(self) -> int:
        """Entries in memory, those of removed ids included."""
        return len(self._first) + len(self._last)

    def add(self, request_id: str, key: Key) -> None:
        """Let an id wait, or change the key of one that waits."""
        if self._keys.get(request_id) == key:
            return
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

    def discard(self, request_id: str) -> None:
        """Let an id wait no longer, if it does."""
        if request_id in self._keys:
            self.remove(request_id)

    def key(self, request_id: str) -> Key:
        """Return the key of an id that waits."""
        return self._keys[request_id]

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


class TriggerQueues:
    """A queue for each trigger."""

    def __init__(self, order: QueueOrder) -> None:
        """Begin empty."""
        self.order = order
        self._queues = tuple(Queue() for _ in Trigger)
        self._requests: dict[str, LiveRequest] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Return the requests that wait."""
        return iter(self._requests.values())

    def add(self, request: LiveRequest) -> None:
        """Let a request wait."""
        self._requests[request.id] = request
        self._queues[request.trigger].add(request.id, (self.order(request), next(self._numbers)))

    def remove(self, request: LiveRequest) -> None:
        """Let a request wait no longer."""
        del self._requests[request.id]
        self._queues[request.trigger].remove(request.id)

    def first(self) -> LiveRequest | None:
        """Return the request whose turn is next."""
        for queue in self._queues:
            if (request_id := queue.first()) is not None:
                return self._requests[request_id]
        return None

    def last_behind(self, request: LiveRequest) -> LiveRequest | None:
        """Return the last request of the lowest class that `request` goes before."""
        for queue in self._queues[: request.trigger - 1 if request.trigger else None : -1]:
            if (last := queue.last()) is not None and self.rank(request) < self.rank(self._requests[last]):
                return self._requests[last]
        return None

    def num_ahead(self, request: LiveRequest) -> int:
        """Return how many requests are served before a newcomer: higher classes, and its own unless newest go first."""
        num_ahead = sum(len(queue) for queue in self._queues[: request.trigger])
        own = self._queues[request.trigger]
        head = own.first()
        if head is not None and self.order(self._requests[head]) <= self.order(request):
            num_ahead += len(own)
        return num_ahead

    def rank(self, request: LiveRequest) -> tuple[int, float]:
        """Return the place of a request in the order of all triggers: the smallest goes first."""
        return request.trigger, self.order(request)


def _reversed(key: Key) -> Key:
    return tuple([-each for each in key])
