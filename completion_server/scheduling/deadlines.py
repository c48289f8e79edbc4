"""Deadlines: the requests that have to end for lack of time, and when to look for them again. Pure."""

import heapq
import itertools
from collections.abc import Callable, Mapping

from completion_server.scheduling.requests import LiveRequest, State
from completion_server.scheduling.shedding import Shedder

_MAX_STALE_TICKS = 64


class Ticks:
    """The times at which to check requests again."""

    def __init__(self, is_live: Callable[[str], bool]) -> None:
        """Begin with none. Requests that are not live any more need no check."""
        self._is_live = is_live
        self._heap: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many times are kept, those of ended requests included."""
        return len(self._heap)

    @property
    def next(self) -> float | None:
        """The earliest time, None if there is none."""
        while self._heap and not self._is_live(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, request_id: str, num_live: int) -> None:
        """Check a request at a time; infinity is never. `num_live` bounds how many stale times are kept."""
        if at == float("inf"):
            return
        heapq.heappush(self._heap, (at, next(self._numbers), request_id))
        if len(self._heap) > 4 * num_live + _MAX_STALE_TICKS:
            self._heap = [tick for tick in self._heap if self._is_live(tick[2])]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> str | None:
        """Return a request whose time has come, None if there is none."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None


class DeadlineWatch:
    """Watches the deadlines of live requests."""

    def __init__(self, shedder: Shedder, requests: Mapping[str, LiveRequest]) -> None:
        """Watch none at first; `requests` has those that are live by their ids."""
        self._shedder = shedder
        self._requests = requests
        self._ticks = Ticks(requests.__contains__)
        self._past_budget: dict[str, LiveRequest] = {}

    @property
    def next(self) -> float | None:
        """The latest time for the next look, None if no request may have to end."""
        return self._ticks.next

    @property
    def past_budget(self) -> list[LiveRequest]:
        """Requests past their budget that keep a slot without a token, because no other request waits; oldest first."""
        return list(self._past_budget.values())

    def add(self, request: LiveRequest, now: float | None = None) -> None:
        """Look at a request when it may have to end. `now` is None for one that has just changed its state."""
        self._ticks.add(self._shedder.next_look(request, now), request.id, len(self._requests))

    def forgive(self, request: LiveRequest) -> None:
        """Note that a request has no slot, or has its first token, and so is not past its budget."""
        self._past_budget.pop(request.id, None)

    def pop_due(self, now: float) -> LiveRequest | None:
        """Return a request that has to end now, past its deadline or unreachable."""
        while (request_id := self._ticks.pop_due(now)) is not None:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if request.deadline.is_past(now) or self._shedder.is_unreachable(request, now):
                return request
            if request.state is State.RUNNING and not request.has_token and now >= request.ttft_deadline:
                self._past_budget[request_id] = request
            self.add(request, now)
        return None
