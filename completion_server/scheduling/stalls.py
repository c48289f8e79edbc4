"""Detects pauses of the engine, which are no samples of its latency. Pure.

A process that was suspended, a virtual machine that was moved, or a GPU that hung for seconds delays everything in
flight by the same time. A moving mean that took these samples in would shed requests long after the engine is well.
"""

import math
from dataclasses import dataclass, field

_MIN_SAMPLES = 10
_SHORTEST_S = 2.0
_LONGER = 4.0
"""A pause is a stall if it is so many times the longest one of late, and `_SHORTEST_S` at least."""
_HALF_LIFE_S = 60.0
"""Of the longest pause."""


@dataclass(slots=True)
class StallDetector:
    """Follows the pauses between an engine's signs of progress while it has work. Times are clock seconds.

    A pause begins with the last sign of progress, or with the oldest work that is still in flight if that began later:
    users who type give work up before the engine can show progress on it.
    """

    longest_s: float = 0.0
    """The longest pause of late. An engine that stays slower raises it, and is not taken for stalled any more."""
    _in_flight: dict[float, int] = field(default_factory=dict)
    """How much work began at a time, in the order of times."""
    _num: int = 0
    _progress_at: float = -math.inf
    _pause_s: float = 0.0
    """The longest pause since the last sign of progress."""
    _stalled_until: float = -math.inf

    def began(self, now: float) -> None:
        """Note that work has begun."""
        self._in_flight[now] = self._in_flight.get(now, 0) + 1

    def ended(self, since: float, now: float) -> None:
        """Note that work which began at `since` is in flight no more."""
        self._look(now)
        left = self._in_flight.get(since, 0) - 1
        if left > 0:
            self._in_flight[since] = left
        else:
            self._in_flight.pop(since, None)

    def progressed(self, now: float) -> float:
        """Note a sign of progress, such as a token; return the length of the stall that it ends, or 0."""
        self._look(now)
        pause_s, decay = self._pause_s, 0.5 ** ((now - self._progress_at) / _HALF_LIFE_S)
        self._pause_s, self._progress_at = 0.0, now
        limit_s = max(_SHORTEST_S, _LONGER * self.longest_s) if self._num >= _MIN_SAMPLES else math.inf
        self._num += 1
        self.longest_s = max(decay * self.longest_s, min(pause_s, limit_s))
        if pause_s <= limit_s:
            return 0.0
        self._stalled_until = now
        return pause_s

    def has_delayed(self, since: float) -> bool:
        """Return whether a stall delayed work that began at `since`."""
        return since < self._stalled_until

    def _look(self, now: float) -> None:
        oldest = next(iter(self._in_flight), math.inf)
        self._pause_s = max(self._pause_s, now - max(self._progress_at, oldest))
