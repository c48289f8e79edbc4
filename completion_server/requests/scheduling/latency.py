"""Estimates the engine's latency and the rate at which waiting requests end, from recent samples. Pure.

A pause of the engine is no sample of its latency. A process that was suspended, a virtual machine that was moved, or a
GPU that hung for seconds delays everything in flight by the same time. A moving mean that took these samples in would
shed requests long after the engine is well.
"""

import math
from dataclasses import dataclass, field, replace

_MIN_SAMPLES = 10
_SHORTEST_S = 2.0
_LONGER = 4.0
"""A pause is a stall if it is so many times the longest one of late, and `_SHORTEST_S` at least."""
_HALF_LIFE_S = 60.0
"""Of the longest pause."""

_WEIGHT = 0.05
"""Weight of a new sample, so that about the last 20 count."""
_MIN_HAZARD = 1e-3
_SIZE_NOISE = 64.0
"""Tokens. If prompt sizes differ by less, differences in time count as noise and not as a slope."""


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


@dataclass(slots=True)
class SizedEstimate:
    """A moving estimate of a time that grows with a size: a line fitted by least squares, and its mean deviation.

    Sizes have any unit; if all are 0, the estimate is a moving mean. Recent samples count more; the first ones weigh
    more than later ones, so that the estimate does not start from 0.
    """

    mean: float = 0.0
    """Mean of all samples of any size."""
    deviation: float = 0.0
    """From the line."""
    median_size: float = 0.0
    """Approximate median of the sizes, which a few large ones do not change."""
    _mean_size: float = 0.0
    _variance: float = 0.0
    _covariance: float = 0.0
    _num: int = 0

    def add(self, value: float, size: float = 0.0) -> None:
        """Take a sample in."""
        self._num += 1
        weight = max(_WEIGHT, 1 / self._num)
        self.deviation += weight * (abs(value - self.at(size)) - self.deviation) if self._num > 1 else 0.0
        step = weight * max(self.median_size, _SIZE_NOISE)
        self.median_size += max(-step, min(step, size - self.median_size))
        from_mean_size, from_mean = size - self._mean_size, value - self.mean
        self._mean_size += weight * from_mean_size
        self.mean += weight * from_mean
        self._variance = (1 - weight) * (self._variance + weight * from_mean_size**2)
        self._covariance = (1 - weight) * (self._covariance + weight * from_mean_size * from_mean)

    def at(self, size: float) -> float:
        """Return the expected value for a size; never smaller for a larger size, never below 0."""
        slope = max(0.0, self._covariance) / (self._variance + _SIZE_NOISE**2)
        return max(0.0, self.mean + slope * (size - self._mean_size))


@dataclass(slots=True)
class LatencyEstimates:
    """Estimates in seconds."""

    first_token: SizedEstimate = field(default_factory=SizedEstimate)
    """From the start of work to its first token, by the prompt tokens that the prefix cache does not have."""
    held: SizedEstimate = field(default_factory=SizedEstimate)
    """How long a slot is taken, by work that ends and by work that is aborted."""
    stalls: StallDetector = field(default_factory=StallDetector)
    """Work that a stall delayed gives no sample."""
    _before_pause: tuple[SizedEstimate, SizedEstimate] | None = None
    _abandoned_share: float = 0.0
    _waited_s: float = 0.0

    def left_queue(self, waited_s: float, *, abandoned: bool) -> None:
        """Add a request that has left the queue: it got a slot, or it was abandoned (superseded or cancelled)."""
        self._abandoned_share += (abandoned - self._abandoned_share) * _WEIGHT
        self._waited_s += (waited_s - self._waited_s) * _WEIGHT

    def took_slot(self, now: float) -> None:
        """Note that work has begun."""
        self.stalls.began(now)

    def progressed(self, now: float) -> float:
        """Note an output of the engine; return the length of the stall that it ends, 0 if there was none.

        What was given up during a stall is forgotten. Only the engine's next token tells a stall from an engine that is
        so slow that all requests are given up.
        """
        stalled_s = self.stalls.progressed(now)
        if stalled_s and self._before_pause is not None:
            self.first_token, self.held = self._before_pause
        self._before_pause = None
        return stalled_s

    def had_first_token(self, since: float, now: float, num_new_tokens: float) -> None:
        """Add the first token of work that began at `since`."""
        if not self.stalls.has_delayed(since):
            self.first_token.add(now - since, num_new_tokens)

    def gave_up(self, since: float, now: float, num_new_tokens: float) -> None:
        """Add a request that was aborted before its first token. If all are, there is no other sample of that time."""
        waited_s = now - since
        if waited_s > self.first_token.at(num_new_tokens) and not self.stalls.has_delayed(since):
            self._keep()
            self.first_token.add(waited_s, num_new_tokens)

    def freed_slot(self, since: float, now: float) -> None:
        """Add work that began at `since` and has ended, was aborted or failed."""
        self.stalls.ended(since, now)
        if not self.stalls.has_delayed(since):
            self._keep()
            self.held.add(now - since)

    def _keep(self) -> None:
        """Keep the estimates as they were at the last output."""
        if self._before_pause is None:
            self._before_pause = replace(self.first_token), replace(self.held)

    @property
    def first_token_s(self) -> float:
        """Seconds to allow from the start of work to its first token, for a prompt of median size."""
        return self.first_token_after(self.first_token.median_size)

    def first_token_after(self, num_new_tokens: float) -> float:
        """Return the seconds to allow from the start of work to its first token, for a prompt with `num_new_tokens`.

        The size matters, because one user's long prompts must not make other requests look unreachable.
        """
        return self.first_token.at(num_new_tokens) + self.first_token.deviation

    @property
    def abandon_rate(self) -> float:
        """Chance that a waiting request is abandoned, per second of its wait."""
        return self._abandoned_share / self._waited_s if self._waited_s else 0.0

    def wait_s(self, num_ahead: int, num_slots: int) -> float:
        """Predict how long a request waits behind `num_ahead` others; 0 before the first sample.

        The queue shrinks as slots become free, at `rate`, and as waiting requests are abandoned, each with the same
        probability per second (h), because most users type on: dn/dt = -(rate + h n), from n to 0.
        """
        rate = num_slots / self.held.mean if self.held.mean else math.inf
        hazard = self.abandon_rate
        if hazard < _MIN_HAZARD:
            return (num_ahead + 1) / rate
        return math.log1p(hazard * (num_ahead + 1) / rate) / hazard
