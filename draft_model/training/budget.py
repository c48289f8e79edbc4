"""Measures how much of the training budget is spent.

The budget is a number of steps, or minutes of active time: the sum of step durations, each counted as at most a few
times the recent median. So a process that is paused for ten minutes spends one step, and keeps its learning rate decay.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

MAX_STEP_OVER_MEDIAN = 4.0
RECENT_STEPS = 32


@dataclass
class Budget:
    """The budget in minutes or in steps, and the part that is spent."""

    minutes: float | None = None
    steps: int | None = None
    active_s: float = 0.0
    num_steps: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("give minutes or steps, one of them")

    def spend_step(self, duration_s: float) -> None:
        """Count one step that took `duration_s` on the clock."""
        if self._recent:
            duration_s = min(duration_s, MAX_STEP_OVER_MEDIAN * median(self._recent))
        self._recent.append(duration_s)
        self.active_s += duration_s
        self.num_steps += 1

    @property
    def progress(self) -> float:
        """The share that is spent, 0 to 1."""
        if self.steps is not None:
            return min(1.0, self.num_steps / self.steps) if self.steps else 1.0
        return min(1.0, self.active_s / (60.0 * self.minutes)) if self.minutes else 1.0

    @property
    def left_s(self) -> float:
        """Active seconds until the budget is spent, at the pace so far."""
        progress = self.progress
        return self.active_s * (1.0 - progress) / progress if progress else 0.0
