"""Adapts the number of requests in the engine to the engine's latency. Pure.

A larger batch makes every step longer, so a batch that is too large delays all requests. Two signals show that: first
tokens take too much of their budget, and steps take much longer than in a lightly loaded engine. The limit follows them
by a gradient, as in Netflix's concurrency-limits. It grows only while it is in full use, because otherwise neither
signal tells anything about a larger batch.
"""

import math
from dataclasses import dataclass

_WINDOW = 32
"""Observations for one adjustment."""
_MIN_GRADIENT = 0.7
_FLOOR_RISE = 1.002
"""Factor by which the floor rises at each adjustment under light load, so that it follows an engine that has become
slower for good."""
_IN_USE = 0.9

_AT_START = "begins low"
_FIRST_TOKENS = "reduced because first tokens took too much of shed.budget_ms"
_STEPS = "reduced because steps took more than scheduling.step_tolerance times the shortest"
_GROWS = "more are added only while nearly all are in use"


@dataclass(slots=True)
class ConcurrencyLimiter:
    """A limit between `least` and `most`."""

    least: int
    most: int
    first_token_s: float
    """How long a first token may take from the start of the work."""
    tolerance: float
    """Allowed step time, in multiples of `floor_s`; 0 keeps the limit at `most`."""
    floor_s: float = math.inf
    """Step time of a lightly loaded engine."""
    _limit: float = 0.0
    _sum_s: float = 0.0
    _num_steps: int = 0
    _num: int = 0
    _cause: str = _AT_START

    def __post_init__(self) -> None:
        """Begin at the geometric mean of `least` and `most`, as either may be far from the right limit."""
        self._limit = float(self.most) if not self.tolerance else max(self.least, math.sqrt(self.least * self.most))

    @property
    def limit(self) -> int:
        """Requests that may be in the engine."""
        return max(self.least, min(self.most, int(self._limit)))

    @property
    def reason(self) -> str:
        """Why the limit is below `most`; "" if it is not."""
        return f"{self._cause}; {_GROWS}" if self.limit < self.most else ""

    def observe(self, step_s: float | None = None) -> bool:
        """Count a first token or, if its time is given, a step; return whether to adjust the limit."""
        if not self.tolerance:
            return False
        self._num += 1
        if step_s:  # a simulated step may take no time, which is no measurement
            self._sum_s += step_s
            self._num_steps += 1
        return self._num >= _WINDOW

    def adjust(self, first_token_s: float, num_in_engine: int) -> int:
        """Adjust the limit to the recent time to a first token, and to the steps since the last time; return it."""
        first_token_gradient = self.first_token_s / first_token_s if first_token_s else 1.0
        step_gradient = self._step_gradient(num_in_engine)
        gradient = min(1.0, first_token_gradient, step_gradient)
        if gradient < 1.0:
            self._limit *= max(_MIN_GRADIENT, gradient)
            self._cause = _FIRST_TOKENS if first_token_gradient <= step_gradient else _STEPS
        elif num_in_engine >= _IN_USE * self.limit:
            self._limit += math.sqrt(self._limit) / 2
        self._limit = max(float(self.least), min(float(self.most), self._limit))
        self._sum_s, self._num_steps, self._num = 0.0, 0, 0
        return self.limit

    def _step_gradient(self, num_in_engine: int) -> float:
        if not self._num_steps:
            return 1.0
        step_s = self._sum_s / self._num_steps
        is_lightly_loaded = num_in_engine <= self.least
        self.floor_s = min(step_s, self.floor_s * (_FLOOR_RISE if is_lightly_loaded else 1.0))
        return self.tolerance * self.floor_s / step_s
