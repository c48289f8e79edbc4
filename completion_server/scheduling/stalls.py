"""Notices that the engine stood still, so that this is not taken for its latency. Pure.

A process that was suspended, a virtual machine that was moved, or a GPU that hung for seconds delays everything in
flight by the same time. A moving mean that took these samples in would shed requests long after the engine is well.
"""

import math
from dataclasses import dataclass

_WEIGHT = 0.05
_MIN_SAMPLES = 10
_SHORTEST_S = 2.0
_LONGER = 8.0
"""A pause between two signs of progress is a stall if it is so many times the usual one, and `_SHORTEST_S` at least."""


@dataclass(slots=True)
class StallDetector:
    """Follows the pauses between an engine's signs of progress while it has work. Times are clock seconds."""

    usual_s: float = 0.0
    """Mean of the pauses. An engine that stays slower raises it step by step, and is not taken for stalled any more."""
    _num: int = 0
    _progress_at: float = -math.inf
    _stalled_until: float = -math.inf

    def began(self, now: float) -> None:
        """Note that an idle engine has got work."""
        self._progress_at = now

    def progressed(self, now: float) -> None:
        """Note a first token, or the end of a generation."""
        pause_s, limit_s = now - self._progress_at, self._limit_s
        if pause_s > limit_s:
            self._stalled_until = now
        self._num += 1
        self.usual_s += max(_WEIGHT, 1 / self._num) * (min(pause_s, limit_s) - self.usual_s)
        self._progress_at = now

    def has_stalled(self, since: float, now: float) -> bool:
        """Return whether the engine stood still during work that began at `since` and goes on, or ends `now`."""
        return since < self._stalled_until or now - self._progress_at > self._limit_s

    @property
    def _limit_s(self) -> float:
        return max(_SHORTEST_S, _LONGER * self.usual_s) if self._num >= _MIN_SAMPLES else math.inf
