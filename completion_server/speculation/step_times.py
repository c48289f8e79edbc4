"""Estimates how long a step takes with each K. Pure."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean, median

_NUM_TIMES = 24
_MIN_TIMES = 3
_FORGET_AFTER_S = 60.0


class StepTimeEstimates:
    """Step time for each generation in the step, by K: the median of the last measurements."""

    def __init__(self) -> None:
        """Begin without data."""
        self._times: dict[int, deque[tuple[float, float]]] = {}

    def begin_with(self, seconds: Mapping[int, float]) -> None:
        """Take earlier times by K until there are measurements; they count as old."""
        for num_speculative_tokens, each in seconds.items():
            for _ in range(_MIN_TIMES):
                self.add(num_speculative_tokens, each, -math.inf)

    def add(self, num_speculative_tokens: int, seconds: float, now: float) -> None:
        """Take in a step that took `seconds` for each generation in it."""
        times = self._times.setdefault(num_speculative_tokens, deque(maxlen=_NUM_TIMES))
        times.append((now, seconds))
        while len(times) > _MIN_TIMES and times[0][0] < now - _FORGET_AFTER_S:
            times.popleft()

    @property
    def can_compare(self) -> bool:
        """Whether two values of K have been measured, so that there is an estimate for each K."""
        return sum(len(times) >= _MIN_TIMES for times in self._times.values()) > 1

    def age_s(self, num_speculative_tokens: int, now: float) -> float:
        """Return the time since a step with this K was last measured, infinite for never."""
        times = self._times.get(num_speculative_tokens)
        return now - times[-1][0] if times else math.inf

    def seconds(self, num_speculative_tokens: int) -> float | None:
        """Return the time with this K, measured or from a line through the measured ones; None without enough data."""
        own = self._measured(num_speculative_tokens)
        if own is not None:
            return own
        known = [(k, seconds) for k in self._times if (seconds := self._measured(k)) is not None]
        # The line excludes K = 0: without drafts the draft model does not run.
        line = [each for each in known if each[0] > 0]
        return _on_line(line if len(line) > 1 else known, num_speculative_tokens) if num_speculative_tokens else None

    def _measured(self, num_speculative_tokens: int) -> float | None:
        times = self._times.get(num_speculative_tokens, ())
        return median(seconds for _, seconds in times) if len(times) >= _MIN_TIMES else None


def _on_line(points: list[tuple[int, float]], x: int) -> float | None:
    """Return the value at `x` of the least-squares line through the points, None for fewer than two."""
    if len(points) < 2:  # noqa: PLR2004
        return None
    mean_x, mean_y = fmean(point[0] for point in points), fmean(point[1] for point in points)
    slope = sum((px - mean_x) * (py - mean_y) for px, py in points) / sum((px - mean_x) ** 2 for px, _ in points)
    return mean_y + max(0.0, slope) * (x - mean_x)
