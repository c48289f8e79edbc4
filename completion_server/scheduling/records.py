"""What the book keeps for each request, and the times at which it must look at one again. Pure."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from completion_server.core.request import Trigger
from completion_server.scheduling.latency import LatencyEstimates
from completion_server.scheduling.queue import QueueEntry

_MAX_STALE_TICKS = 64


class State(Enum):
    """The state of a request that the book knows."""

    QUEUED = "queued"
    RUNNING = "running"
    ABORTING = "aborting"


class Shedding(Enum):
    """When a request is given up for lack of time."""

    NEVER = "never"
    """It waits until its deadline."""
    LATE = "late"
    """As soon as even a slot at once would give it no token in time."""
    PREDICTED = "predicted"
    """Also when it arrives, if it is predicted to end so."""


@dataclass(slots=True)
class Record:
    """A request in the book."""

    entry: QueueEntry
    queued_at: float
    state: State = State.QUEUED
    slot_since: float = 0.0
    has_token: bool = False
    is_reattached: bool = False
    """Whether its generation was started for another request."""
    num_new_tokens: int = field(init=False)
    """Prompt tokens to compute, by the best estimate so far."""

    def __post_init__(self) -> None:
        """Begin with the estimate made on arrival."""
        self.num_new_tokens = self.entry.num_new_tokens

    @property
    def lane(self) -> tuple[str, bool]:
        """Key of its lane; prefetches have one beside that of typed requests."""
        return self.entry.lane, self.entry.trigger is Trigger.PREFETCH

    def latest_start(self, latency: LatencyEstimates) -> float:
        """Return when a slot would come too late for a first token in time."""
        return self.entry.ttft_deadline - latency.first_token_after(self.num_new_tokens)

    def is_unreachable(self, now: float, shedding: Shedding, latency: LatencyEstimates, num_queued: int) -> bool:
        """Return whether it can't have its first token in time. One with a slot only loses it to one that waits."""
        if shedding is Shedding.NEVER:
            return False
        if self.state is State.QUEUED:
            return now >= self.latest_start(latency)
        return not self.has_token and num_queued > 0 and now >= self.entry.ttft_deadline

    def next_look(self, now: float | None, shedding: Shedding, latency: LatencyEstimates) -> float:
        """Return when it may have to end: at its deadline, or before, when time for its first token runs out.

        `now` is None for one that has just changed its state, and has not been looked at in that state.
        """
        at = self.entry.deadline.at
        if shedding is Shedding.NEVER:
            return at
        if self.state is State.QUEUED:
            return min(at, self.latest_start(latency))
        if not self.has_token and (now is None or now < self.entry.ttft_deadline):
            return min(at, self.entry.ttft_deadline)
        return at


class Ticks:
    """The times at which to look at requests again."""

    def __init__(self, is_live: Callable[[str], bool]) -> None:
        """Begin with none. Requests that are not live any more need no look."""
        self._is_live = is_live
        self._heap: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()

    @property
    def next(self) -> float | None:
        """The earliest time, None if there is none."""
        while self._heap and not self._is_live(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, request_id: str, num_live: int) -> None:
        """Look at a request at a time; infinity is never. `num_live` bounds how many stale ones are kept."""
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
