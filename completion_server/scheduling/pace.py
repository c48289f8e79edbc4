"""How fast the engine serves and the queue thins out, learnt from what has lately happened. Pure."""

import math
from dataclasses import dataclass, field

_WEIGHT = 0.05
"""Of a new sample: the last 20 or so count."""
_MIN_HAZARD = 1e-3


@dataclass(slots=True)
class Estimate:
    """A moving mean and mean deviation; 0 before the first sample."""

    mean: float = 0.0
    deviation: float = 0.0
    _num: int = 0

    def add(self, value: float) -> None:
        """Take a sample in. The first ones weigh more, so that it does not start from 0."""
        self._num += 1
        weight = max(_WEIGHT, 1 / self._num)
        self.deviation += weight * (abs(value - self.mean) - self.deviation) if self._num > 1 else 0.0
        self.mean += weight * (value - self.mean)


@dataclass(slots=True)
class Pace:
    """Estimates in seconds."""

    first_token: Estimate = field(default_factory=Estimate)
    """From the start of work to its first token."""
    held: Estimate = field(default_factory=Estimate)
    """How long a slot is taken, by work that ends and by work that is stopped."""
    _num_vanished: float = 0.0
    _waited_s: float = 0.0

    def left_queue(self, waited_s: float, *, has_vanished: bool) -> None:
        """A request has stopped waiting: for a slot, or because nobody wants it any more."""
        self._num_vanished += (has_vanished - self._num_vanished) * _WEIGHT
        self._waited_s += (waited_s - self._waited_s) * _WEIGHT

    @property
    def first_token_s(self) -> float:
        """What to allow from the start of work to its first token: more than the mean, as much as it varies."""
        return self.first_token.mean + self.first_token.deviation

    def wait_s(self, num_ahead: int, num_slots: int) -> float:
        """Predict how long a request waits with so many ahead of it, 0 before anything is known.

        Those who wait come to their turn at the rate that slots come free, and vanish on their own before it, each with
        the same chance in any second (h), as most of them do when users type on: dn/dt = -(rate + h n), from n to 0.
        """
        rate = num_slots / self.held.mean if self.held.mean else math.inf
        hazard = self._num_vanished / self._waited_s if self._waited_s else 0.0
        if hazard < _MIN_HAZARD:
            return (num_ahead + 1) / rate
        return math.log1p(hazard * (num_ahead + 1) / rate) / hazard
