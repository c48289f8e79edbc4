"""How many requests may be in the engine: as many as its steps bear without getting slow. Pure.

A batch makes every step longer, and with it each request's tokens: one that is too big serves everybody late. The
limit follows a gradient, as in Netflix's concurrency-limits, but over the time of a step instead of a round trip: the
target is a multiple of what a step takes with hardly anything to do. It grows only while all of it is in use, since
otherwise steps say nothing about a larger batch.
"""

import math
from dataclasses import dataclass

_WINDOW = 32
"""Steps of single requests for one adjustment."""
_MIN_GRADIENT = 0.7
_FLOOR_RISE = 1.002
"""The floor forgets: at each adjustment with little to do it rises by so much towards what is now measured, should the
engine have become slower for good. Under load it would follow what the load itself makes of steps, and so the limit."""
_IN_USE = 0.9


@dataclass(slots=True)
class StepLimiter:
    """A limit between `least` and `most`, on the way to steps of `tolerance` times the shortest."""

    least: int
    most: int
    tolerance: float
    """0 keeps the limit at `most`."""
    floor_s: float = math.inf
    """Time of a step in an engine with little to do."""
    _limit: float = 0.0
    _sum_s: float = 0.0
    _num: int = 0

    def __post_init__(self) -> None:
        """Begin in the middle, as a geometric mean: either end may be far off."""
        self._limit = float(self.most) if not self.tolerance else max(self.least, math.sqrt(self.least * self.most))

    @property
    def limit(self) -> int:
        """Requests that may be in the engine."""
        return max(self.least, min(self.most, int(self._limit)))

    def observe(self, step_s: float, num_in_engine: int) -> int:
        """Take in how long a step took a request, in such company; return the limit."""
        if not self.tolerance:
            return self.limit
        if step_s <= 0.0:  # as in simulated time; no multiple of it says anything
            return self.limit
        self._sum_s += step_s
        self._num += 1
        if self._num >= _WINDOW:
            self._adjust(self._sum_s / self._num, num_in_engine)
            self._sum_s, self._num = 0.0, 0
        return self.limit

    def _adjust(self, step_s: float, num_in_engine: int) -> None:
        has_little_to_do = num_in_engine <= self.least
        self.floor_s = min(step_s, self.floor_s * (_FLOOR_RISE if has_little_to_do else 1.0))
        gradient = min(1.0, self.tolerance * self.floor_s / step_s)
        if gradient < 1.0:
            self._limit *= max(_MIN_GRADIENT, gradient)
        elif num_in_engine >= _IN_USE * self.limit:
            self._limit += math.sqrt(self._limit) / 2
        self._limit = max(float(self.least), min(float(self.most), self._limit))
