"""Queue entries and the queues: one for each trigger, sorted by an order. Pure.

In every order EXPLICIT goes before AUTOMATIC, and AUTOMATIC before PREFETCH. docs/scheduling.md compares the orders.
"""

import heapq
import itertools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.request import Trigger
from completion_server.scheduling.reattach import Continuation


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A request in the queue or in a slot. Plain values, which could cross to another process."""

    id: str
    lane: str
    """Key of the lane: a newer entry takes the place of an older one on the same lane. Prefetches have a lane beside
    it."""
    session: str
    """Sequences are compared within a session; across sessions the later arrival is the newer."""
    sequence: int
    trigger: Trigger
    deadline: Deadline = NEVER
    """The time at which the request ends in any case."""
    arrived_at: float = 0.0
    """Clock seconds."""
    ttft_deadline: float = float("inf")
    """Clock seconds by which the first token must come; later the answer has no value."""
    num_new_tokens: int = 0
    """Prompt tokens that the engine will have to compute, by the estimate made on arrival."""
    continuation: Continuation | None = None
    """The text that the request continues; None if it can't reattach and no request can reattach to it."""
    answer_key: Hashable | None = None
    """Requests with equal keys have equal answers, so one generation serves them; None if no other request's serves."""
    stamp: int = 0
    """The request's place in an order that all replicas share; 0 if other replicas don't know of it."""


Order = Callable[[QueueEntry], float]
"""The request with the smallest number goes first; it must not change while the request waits."""


def first_come(entry: QueueEntry) -> float:
    """Serve the oldest request first."""
    return entry.arrived_at


def newest_first(entry: QueueEntry) -> float:
    """Serve the newest request first. Most of the newest are about to be superseded."""
    return -entry.arrived_at


def earliest_deadline(entry: QueueEntry) -> float:
    """Serve the request with the earliest deadline first. A user who has waited long has paused to read the answer."""
    return entry.ttft_deadline


ORDERS: Mapping[str, Order] = {
    "earliest_deadline": earliest_deadline,
    "first_come": first_come,
    "newest_first": newest_first,
}
"""The orders by their names in the configuration."""

Key = tuple[float, int]
"""The value of the order, and a number that breaks ties."""

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

    @property
    def num_kept(self) -> int:
        """Entries in memory, those of removed ids included."""
        return len(self._first) + len(self._last)

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


class TriggerQueues:
    """A queue for each trigger."""

    def __init__(self, order: Order) -> None:
        """Begin empty."""
        self.order = order
        self._queues = tuple(Queue() for _ in Trigger)
        self._entries: dict[str, QueueEntry] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._entries)

    def add(self, entry: QueueEntry) -> None:
        """Let a request wait."""
        self._entries[entry.id] = entry
        self._queues[entry.trigger].add(entry.id, (self.order(entry), next(self._numbers)))

    def remove(self, entry: QueueEntry) -> None:
        """Let a request wait no longer."""
        del self._entries[entry.id]
        self._queues[entry.trigger].remove(entry.id)

    def first(self) -> QueueEntry | None:
        """Return the request whose turn is next."""
        for queue in self._queues:
            if (request_id := queue.first()) is not None:
                return self._entries[request_id]
        return None

    def last_behind(self, entry: QueueEntry) -> QueueEntry | None:
        """Return the last request of the lowest class that `entry` goes before."""
        for queue in self._queues[: entry.trigger - 1 if entry.trigger else None : -1]:
            if (last := queue.last()) is not None and self.rank(entry) < self.rank(self._entries[last]):
                return self._entries[last]
        return None

    def num_ahead(self, entry: QueueEntry) -> int:
        """Return how many requests are served before a newcomer: higher classes, and its own unless newest go first."""
        num_ahead = sum(len(queue) for queue in self._queues[: entry.trigger])
        own = self._queues[entry.trigger]
        head = own.first()
        if head is not None and self.order(self._entries[head]) <= self.order(entry):
            num_ahead += len(own)
        return num_ahead

    def rank(self, entry: QueueEntry) -> tuple[int, float]:
        """Return the place of a request in the order of all triggers: the smallest goes first."""
        return entry.trigger, self.order(entry)


def _reversed(key: Key) -> Key:
    return -key[0], -key[1]
