"""The queue of requests that wait for a slot, sorted by trigger and then by an order. Pure.

In every order EXPLICIT goes before AUTOMATIC, and AUTOMATIC before PREFETCH. docs/scheduling.md compares the orders.
"""

import bisect
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping

from completion_server.requests.scheduling.requests import LiveRequest

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

Entry = tuple[int, float, int, LiveRequest]
"""Trigger, value of the order, a number that breaks ties, and the request. The smallest goes first."""

_trigger = operator.itemgetter(0)


class RequestQueue:
    """The requests that wait, in their order."""

    def __init__(self, order: QueueOrder) -> None:
        """Begin empty."""
        self.order = order
        self._waiting: list[Entry] = []
        """Sorted. Adding and removing move references only, which is fast in C, also with thousands of them."""
        self._entries: dict[str, Entry] = {}
        self._numbers = itertools.count()
        self.num_new_tokens = 0
        """Prompt tokens that the engine has to compute for them."""

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Return the requests that wait, in their order."""
        return (entry[-1] for entry in self._waiting)

    def add(self, request: LiveRequest) -> None:
        """Let a request wait."""
        entry = self._entries[request.id] = (request.trigger, self.order(request), next(self._numbers), request)
        bisect.insort(self._waiting, entry)
        self.num_new_tokens += request.num_new_tokens

    def remove(self, request: LiveRequest) -> None:
        """Let a request wait no longer."""
        del self._waiting[bisect.bisect_left(self._waiting, self._entries.pop(request.id))]
        self.num_new_tokens -= request.num_new_tokens

    def start(self, request: LiveRequest) -> None:
        """Let a request wait no longer, because its generation has a slot now."""
        self.remove(request)

    def num_ahead(self, request: LiveRequest) -> int:
        """Return how many requests are served before a newcomer: higher classes, and its own unless newest go first."""
        begin = bisect.bisect_left(self._waiting, request.trigger, key=_trigger)
        end = bisect.bisect_right(self._waiting, request.trigger, lo=begin, key=_trigger)
        return begin if begin == end or self.order(request) < self._waiting[begin][1] else end

    def rank(self, request: LiveRequest) -> tuple[int, float]:
        """Return the place of a request in the order of all triggers: the smallest goes first."""
        return request.trigger, self.order(request)
