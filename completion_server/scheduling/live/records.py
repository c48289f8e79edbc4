"""The book's record of each request, and the times at which it must check one again. Pure."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from completion_server.core.request import Trigger
from completion_server.scheduling.queue import QueueEntry

_MAX_STALE_TICKS = 64


class State(Enum):
    """The state of a request that the book knows."""

    QUEUED = "queued"
    JOINED = "joined"
    RUNNING = "running"
    ABORTING = "aborting"


@dataclass(slots=True)
class LiveRequest:
    """A request in the book."""

    entry: QueueEntry
    queued_at: float
    state: State = State.QUEUED
    slot_since: float = 0.0
    has_token: bool = False
    is_reattached: bool = False
    """Whether it reads a generation from after the text typed since; its first token is no sample of the engine's."""
    num_new_tokens: int = field(init=False)
    """Prompt tokens to compute, by the best estimate so far."""

    def __post_init__(self) -> None:
        """Begin with the estimate made on arrival."""
        self.num_new_tokens = self.entry.num_new_tokens

    @property
    def lane(self) -> tuple[str, bool]:
        """Key of its lane; prefetches have one beside that of typed requests."""
        return self.entry.lane, self.entry.trigger is Trigger.PREFETCH


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
