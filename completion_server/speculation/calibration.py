"""Makes the controller's predictions agree with the trial's measurements. Pure.

The controller predicts the tokens/s of a K from steps without prompts. The trial measures what callers get, with the
draft model's share of the prompts and with drafts beyond the end of a completion. The measured gain over the gain that
the same steps predict is a correction by batch size and K, which holds while acceptance and step times change.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from completion_server.engine.interface import EngineStep
from completion_server.speculation.estimates import StepTimeEstimates

_MIN_STEPS = 3
_MIN_FULL = 0.75
"""A batch counts as one of a measured size if it has at least this share of it."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """Factors for the predicted tokens/s, relative to K = 0, and the step times that they hold for."""

    log_factors: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Logarithms by measured batch size and K."""
    seconds: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Seconds of a step for each generation, by measured batch size and K."""

    def factor(self, batch_size: int, k: int) -> float:
        """Return the factor: that of the nearest measured batch size, on a line between the measured Ks."""
        if not self.log_factors or k == 0:
            return 1.0
        points = {0: 0.0, **self.log_factors[_nearest(self.log_factors, batch_size)]}
        ks = sorted(points)
        at = bisect_left(ks, k)
        if at == len(ks):
            return math.exp(points[ks[-1]])
        low, high = ks[at - 1], ks[at]
        return math.exp(points[low] + (points[high] - points[low]) * (k - low) / (high - low))

    def times_at(self, batch_size: int) -> StepTimeEstimates:
        """Return the step times of the nearest measured batch size."""
        times = StepTimeEstimates()
        if self.seconds:
            times.begin_with(self.seconds[_nearest(self.seconds, batch_size)])
        return times


def _nearest(sizes: Iterable[int], batch_size: int) -> int:
    return min(sizes, key=lambda size: abs(math.log(size / batch_size)))


class Calibration:
    """The steps of a trial."""

    def __init__(self) -> None:
        """Begin without steps."""
        self._before: EngineStep | None = None
        self._times: dict[tuple[int, int], list[float]] = {}
        """Seconds for each generation, by batch size and K."""
        self._drafts: dict[int, tuple[int, int]] = {}
        """Drafts and their accepted tokens, by K."""

    def add(self, step: EngineStep) -> None:
        """Take in a step. The next one shows the K of the drafts that it proposed, as for the controller."""
        k = step.num_speculative_tokens
        if k:
            num, accepted = self._drafts.get(k, (0, 0))
            self._drafts[k] = (num + step.drafted[0], accepted + sum(step.accepted))
        timed, self._before = self._before, step
        if timed is None or timed.seconds is None or timed.has_prompts or timed.num_speculative_tokens != k:
            return
        self._times.setdefault((timed.num_seqs, k), []).append(timed.seconds / timed.num_seqs)

    def corrections(self, log_gains: Mapping[int, Mapping[int, float]]) -> Corrections:
        """Return the corrections for the measured gains, at the batch sizes with enough steps of each K."""
        found, seconds = {}, {}
        for size, gains in log_gains.items():
            predicted = {k: gain for k in gains if (gain := self._predicted_log_gain(size, k)) is not None}
            if gains and len(predicted) == len(gains):
                found[size] = {k: gains[k] - gain for k, gain in predicted.items()}
                seconds[size] = {k: each for k in (0, *predicted) if (each := self._seconds(size, k)) is not None}
        return Corrections(found, seconds)

    def _predicted_log_gain(self, size: int, k: int) -> float | None:
        """Return what the controller would predict from the steps."""
        own, off, (num, accepted) = self._seconds(size, k), self._seconds(size, 0), self._drafts.get(k, (0, 0))
        return math.log((1 + accepted / num) * off / own) if own and off and num else None

    def _seconds(self, size: int, k: int) -> float | None:
        times = [
            each
            for (num_seqs, with_k), found in self._times.items()
            if with_k == k and _MIN_FULL * size <= num_seqs <= size
            for each in found
        ]
        return median(times) if len(times) >= _MIN_STEPS else None
