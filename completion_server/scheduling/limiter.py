"""How many requests may be in the engine: as many as it bears without getting late or slow. Pure.

A batch makes every step longer, and with it each request's tokens: one that is too big serves everybody late. Two
signs show it: first tokens that take too much of the time that they may take, and steps that take much longer than in
an engine with little to do. The limit follows them by a gradient, as in Netflix's concurrency-limits. It grows only
while all of it is in use, since otherwise neither says anything about a larger batch.
"""

import math
from dataclasses import dataclass

_WINDOW = 32
"""Observations for one adjustment."""
_MIN_GRADIENT = 0.7
_FLOOR_RISE = 1.002
"""The floor forgets: at each adjustment with little to do it rises by so much towards what is now measured, should the
engine have become slower for good."""
_IN_USE = 0.9


@dataclass(slots=True)
class Limiter:
    """A limit between `least` and `most`."""

    least: int
    most: int
    first_token_s: float
    """How long a first token may take from the start of the work."""
    tolerance: float
    """How many times the shortest a step may take; 0 keeps the limit at `most`."""
    floor_s: float = math.inf
    """Time of a step in an engine with little to do."""
    _limit: float = 0.0
    _sum_s: float = 0.0
    _num_steps: int = 0
    _num: int = 0

    def __post_init__(self) -> None:
        """Begin in the middle, as a geometric mean: either end may be far off."""
        self._limit = float(self.most) if not self.tolerance else max(self.least, math.sqrt(self.least * self.most))

    @property
    def limit(self) -> int:
        """Requests that may be in the engine."""
        return max(self.least, min(self.most, int(self._limit)))

    def observe(self, first_token_s: float, num_in_engine: int, step_s: float | None = None) -> int:
        """Take in what first tokens lately take, and how long a step took a request, if one did; return the limit."""
        if not self.tolerance:
            return self.limit
        self._num += 1
        if step_s:  # one that takes no time, as simulated ones may, says nothing
            self._sum_s += step_s
            self._num_steps += 1
        if self._num >= _WINDOW:
            self._adjust(first_token_s, num_in_engine)
            self._sum_s, self._num_steps, self._num = 0.0, 0, 0
        return self.limit

    def _adjust(self, first_token_s: float, num_in_engine: int) -> None:
        first_token_gradient = self.first_token_s / first_token_s if first_token_s else 1.0
        gradient = min(1.0, first_token_gradient, self._step_gradient(num_in_engine))
        if gradient < 1.0:
            self._limit *= max(_MIN_GRADIENT, gradient)
        elif num_in_engine >= _IN_USE * self.limit:
            self._limit += math.sqrt(self._limit) / 2
        self._limit = max(float(self.least), min(float(self.most), self._limit))

    def _step_gradient(self, num_in_engine: int) -> float:
        if not self._num_steps:
            return 1.0
        step_s = self._sum_s / self._num_steps
        has_little_to_do = num_in_engine <= self.least
        self.floor_s = min(step_s, self.floor_s * (_FLOOR_RISE if has_little_to_do else 1.0))
        return self.tolerance * self.floor_s / step_s
