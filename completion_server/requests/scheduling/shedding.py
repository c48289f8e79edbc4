"""Decides which requests end for lack of time, when to look for them, and the outcome of a shed request. Pure."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from completion_server.core.errors import Limit
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.requests.scheduling.fair_queue import FairQueue
from completion_server.requests.scheduling.latency import LatencyEstimates
from completion_server.requests.scheduling.requests import LiveRequest, State

_MIN_RETRY_AFTER_MS = 50

_MAX_STALE_TICKS = 64


class Shedding(Enum):
    """The time at which a request is shed for lack of time."""

    NEVER = "never"
    """Not before its deadline."""
    LATE = "late"
    """As soon as it would get no token in time even with a slot now."""
    PREDICTED = "predicted"
    """As LATE, and on arrival if it is predicted to get no token in time."""


@dataclass(frozen=True, slots=True)
class Shedder:
    """Applies one mode of shedding."""

    shedding: Shedding
    latency: LatencyEstimates
    queue: FairQueue
    max_retry_after_ms: int
    max_queued: int

    def outcome(self, request: LiveRequest, reason: ShedReason, num_slots: int) -> Outcome:
        """Return the outcome of a shed request. Its caller may retry after the predicted wait of a newcomer."""
        retry_after_ms = max(_MIN_RETRY_AFTER_MS, round(self._wait_s(request, num_slots) * 1000))
        limit = Limit("scheduling.max_queued", self.max_queued) if reason is ShedReason.OVERLOAD else None
        return Outcome(FinishReason.SHED, reason, min(self.max_retry_after_ms, retry_after_ms), limit=limit)

    def make_room(
        self, request: LiveRequest, now: float, num_slots: int, *, has_room: bool
    ) -> tuple[LiveRequest, Outcome] | None:
        """Return the request to shed for a newcomer that has to wait, or the newcomer; None if it may wait."""
        if self.is_predicted_late(request, now, num_slots):
            return request, self.outcome(request, ShedReason.DEADLINE_UNREACHABLE, num_slots)
        if has_room:
            return None
        last = self.queue.last_behind(request) or request
        return last, self.outcome(last, ShedReason.OVERLOAD, num_slots)

    def is_predicted_late(self, request: LiveRequest, now: float, num_slots: int) -> bool:
        """Return whether a newcomer that has to wait is predicted to have no first token in time."""
        if self.shedding is not Shedding.PREDICTED:
            return False
        first_token_s = self.latency.first_token_after(request.num_new_tokens)
        return now + self._wait_s(request, num_slots) + first_token_s > request.ttft_deadline

    def is_unreachable(self, request: LiveRequest, now: float) -> bool:
        """Return whether a request can't have its first token in time. A running one only ends if another waits.

        A joined one never does: it takes no slot and no place in the queue.
        """
        state = request.state
        if self.shedding is Shedding.NEVER or state is State.JOINED:
            return False
        if state is State.QUEUED:
            return not request.inherits_slot and now >= self._latest_start(request)
        return not request.has_token and len(self.queue) > 0 and now >= request.ttft_deadline

    def next_look(self, request: LiveRequest, now: float | None) -> float:
        """Return the next time at which a request may have to end.

        That is its deadline, the last call before it, or the limit for its first token. `now` is None for a request
        that has just changed its state.
        """
        at, state = request.last_call, request.state
        if now is not None and now >= at:
            at = request.deadline.at
        if self.shedding is Shedding.NEVER or state is State.JOINED:
            return at
        if state is State.QUEUED:
            return at if request.inherits_slot else min(at, self._latest_start(request))
        if not request.has_token and (now is None or now < request.ttft_deadline):
            return min(at, request.ttft_deadline)
        return at

    def _wait_s(self, request: LiveRequest, num_slots: int) -> float:
        return self.latency.wait_s(self.queue.num_ahead(request), num_slots)

    def _latest_start(self, request: LiveRequest) -> float:
        """Return the latest start of work for which the first token is expected in time."""
        return request.ttft_deadline - self.latency.first_token_after(request.num_new_tokens)


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
        """Return a request that has to end now, past its deadline or unreachable, or whose last call it is."""
        while (request_id := self._ticks.pop_due(now)) is not None:
            request = self._requests.get(request_id)
            if request is None:
                continue
            is_last_call = request.has_token and now >= request.last_call
            if is_last_call or request.deadline.is_past(now) or self._shedder.is_unreachable(request, now):
                return request
            if request.state is State.RUNNING and not request.has_token and now >= request.ttft_deadline:
                self._past_budget[request_id] = request
            self.add(request, now)
        return None
