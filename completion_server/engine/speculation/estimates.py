"""Estimates the tokens/s of each K at each batch size from the engine's steps. Pure.

A step of b generations yields b (1 + s1 + ... + sK) tokens in T(b, K) seconds; si is the chance that the first i draft
tokens are all accepted. The steps of the trial at start and those of later traffic go into the same estimates.
"""

import math
from collections import deque
from collections.abc import Container, Mapping
from itertools import pairwise
from statistics import linear_regression, median

from completion_server.engine.interface import EngineStep

_MIN_REACHED = 4.0
"""A position with fewer drafts than this uses the rate of the position before it."""

_HALF_LIFE_DRAFTS, _HALF_LIFE_S = 1024, 60.0

_NUM_RECENT_STEPS = 32
"""A change is searched for in up to this many steps with drafts."""

_MIN_LOG_RATIO = 9.0
"""The log-likelihood ratio of a change: that of five first tokens rejected in a row after an acceptance of 85%."""

_NUM_TIMES, _MIN_TIMES = 24, 3
_FORGET_AFTER_S = 60.0


class AcceptanceEstimates:
    """Acceptance rates by position, over the last thousand drafts or since the last clear change.

    A change is clear if the first tokens of the last one, two, three ... steps have a likelihood under a rate of their
    own that is far above that under the long-term rate.
    """

    def __init__(self, num_positions: int) -> None:
        """Begin without data."""
        self._reached = [0.0] * num_positions
        """Draft tokens before which all were accepted, by position. They decay, and so do the accepted ones."""
        self._accepted = [0.0] * num_positions
        self._recent: deque[EngineStep] = deque(maxlen=_NUM_RECENT_STEPS)
        self.drafted_at = -math.inf
        """When a draft was last verified."""

    def add(self, step: EngineStep, now: float) -> bool:
        """Take in a step that ended `now`; return whether acceptance has changed, so that older data is forgotten."""
        if not step.drafted:
            return False
        self._count(step, math.exp2(-step.drafted[0] / _HALF_LIFE_DRAFTS - (now - self.drafted_at) / _HALF_LIFE_S))
        self._recent.append(step)
        self.drafted_at = now
        since = self._steps_since_change()
        if since:
            self._reached, self._accepted = [0.0] * len(self._reached), [0.0] * len(self._accepted)
            self._recent.clear()
        for each in since:
            self._count(each, 1.0)
        return bool(since)

    def _count(self, step: EngineStep, keep: float) -> None:
        """Add a step to the counts, of which the share `keep` stays."""
        self._reached, self._accepted = ([keep * each for each in counts] for counts in (self._reached, self._accepted))
        reached = step.drafted[0]
        for position, (drafted, accepted) in enumerate(zip(step.drafted, step.accepted, strict=True)):
            self._reached[position] += min(reached, drafted)
            self._accepted[position] += accepted
            reached = accepted

    def _steps_since_change(self) -> list[EngineStep]:
        """Return the steps since the most likely change; none if there was no change."""
        # Smoothed by half a token, so that it is never exactly 0 or 1.
        rate = (self._accepted[0] + 0.5) / (self._reached[0] + 1)
        num = num_accepted = num_since = 0
        largest = _MIN_LOG_RATIO
        for num_steps, step in enumerate(reversed(self._recent), 1):
            num, num_accepted = num + step.drafted[0], num_accepted + step.accepted[0]
            ratio = _log_likelihood_ratio(num_accepted, num, rate)
            if num >= _MIN_REACHED and ratio > largest:
                largest, num_since = ratio, num_steps
        return list(self._recent)[-num_since:] if num_since else []

    def expected_length(self, num_speculative_tokens: int) -> float | None:
        """Return the tokens that a generation should get from a step, None without data."""
        if not num_speculative_tokens:
            return 1.0
        if self._reached[0] < _MIN_REACHED:
            return None
        length = survival = 1.0
        rate = 0.0
        for reached, accepted in zip(self._reached[:num_speculative_tokens], self._accepted, strict=False):
            rate = accepted / reached if reached >= _MIN_REACHED else rate
            survival *= rate
            length += survival
        return length


def _log_likelihood_ratio(accepted: float, num: float, rate: float) -> float:
    """Return the log of the counts' likelihood under their own rate over that under `rate`."""
    parts = ((accepted, rate), (num - accepted, 1 - rate))
    return sum(count * math.log(count / num / chance) for count, chance in parts if count > 0)


class StepTimeEstimates:
    """Step time for each generation in the step, by K: the median of the last measurements."""

    def __init__(self) -> None:
        """Begin without data."""
        self._times: dict[int, deque[tuple[float, float]]] = {}
        self.medians: dict[int, float] = {}
        """The times of the Ks that were measured often enough."""

    def add(self, num_speculative_tokens: int, seconds: float, now: float) -> None:
        """Take in a step that took `seconds` for each generation in it."""
        times = self._times.setdefault(num_speculative_tokens, deque(maxlen=_NUM_TIMES))
        times.append((now, seconds))
        while len(times) > _MIN_TIMES and times[0][0] < now - _FORGET_AFTER_S:
            times.popleft()
        if len(times) >= _MIN_TIMES:
            self.medians[num_speculative_tokens] = median(each for _, each in times)

    def age_s(self, num_speculative_tokens: int, now: float) -> float:
        """Return the time since a step with this K was last measured, infinite for never."""
        times = self._times.get(num_speculative_tokens)
        return now - times[-1][0] if times else math.inf

    def seconds(self, num_speculative_tokens: int) -> float | None:
        """Return the time with this K, measured or from a line through the measured ones; None without enough data."""
        known = self.medians
        if num_speculative_tokens in known or not num_speculative_tokens:
            return known.get(num_speculative_tokens)
        # The line excludes K = 0: without drafts the draft model does not run.
        line = {k: seconds for k, seconds in known.items() if k > 0}
        line = line if len(line) > 1 else known
        if len(line) < 2:  # noqa: PLR2004
            return None
        slope, base = linear_regression(list(line), list(line.values()))
        return base + slope * num_speculative_tokens if slope > 0 else median(line.values())


class Estimates:
    """The expected tokens/s by batch size and K."""

    def __init__(self, max_num_speculative_tokens: int, max_batch_size: int) -> None:
        """Begin without data."""
        self.acceptance = AcceptanceEstimates(max_num_speculative_tokens)
        self._times: list[StepTimeEstimates] = []
        self._at: list[int] = [0]
        """By batch size: the index of its step times."""
        for first, last in split_batch_sizes(max_batch_size):
            self._at += [len(self._times)] * (last + 1 - first)
            self._times.append(StepTimeEstimates())
        self._log_factors: dict[int, dict[int, float]] = {}
        self._before: tuple[EngineStep, float] | None = None
        """The previous step, and when it ended."""

    def add(self, step: EngineStep, now: float) -> bool:
        """Take in a step that ended `now`; return whether acceptance has clearly changed."""
        before, self._before = self._before, (step, now)
        if before is not None:
            # The drafts that a step proposed are verified in the next one, which shows their K: a step's time is
            # understood one step later.
            timed, at = before
            is_clean = not (timed.has_prompts or timed.has_undrafted or step.has_undrafted)
            k = timed.num_speculative_tokens
            if timed.seconds is not None and is_clean and k == step.num_speculative_tokens:
                self.times(timed.num_seqs).add(k, timed.seconds / timed.num_seqs, at)
        return self.acceptance.add(step, now)

    def times(self, batch_size: int) -> StepTimeEstimates:
        """Return the measured step times of batches of about this size."""
        return self._times[self._at[min(batch_size, len(self._at) - 1)]]

    def goodput(self, batch_size: int, k: int) -> float | None:
        """Return the expected tokens/s of each of so many generations, None without enough data.

        Step times that were never compared are those of the nearest batch size at which two Ks were.
        """
        at, length = self._at[min(batch_size, len(self._at) - 1)], self.acceptance.expected_length(k)
        nearest = sorted(range(len(self._times)), key=lambda other: abs(other - at))
        times = next((self._times[each] for each in nearest if len(self._times[each].medians) > 1), self._times[at])
        seconds = times.seconds(k)
        return None if seconds is None or length is None else self._factor(batch_size, k) * length / seconds

    def calibrate(self, log_gains: Mapping[int, Mapping[int, float]]) -> None:
        """Correct the estimates by what a trial measured, the logarithm of each K's gain by batch size.

        The trial measures what callers get, with the draft model's share of the prompts and with drafts beyond the end
        of a completion, which the steps do not show. So the estimates choose as the trial did for the same text.
        """
        found: dict[int, dict[int, float]] = {}
        self._log_factors = {}
        for size, gains in log_gains.items():
            off, rates = self.goodput(size, 0), {k: self.goodput(size, k) for k in gains}
            predicted = {k: math.log(rate / off) for k, rate in rates.items() if rate and off}
            if gains and len(predicted) == len(gains):
                found[size] = {0: 0.0, **{k: gains[k] - gain for k, gain in predicted.items()}}
        self._log_factors = found

    def _factor(self, batch_size: int, k: int) -> float:
        """Return the correction at the nearest measured batch size, on a line between the measured Ks."""
        if not self._log_factors:
            return 1.0
        size = min(self._log_factors, key=lambda size: abs(math.log(size / batch_size)))
        points = sorted(self._log_factors[size].items())
        for (low, first), (high, second) in pairwise(points):
            if k <= high:
                return math.exp(first + (second - first) * (k - low) / (high - low))
        return math.exp(points[-1][1])


def split_batch_sizes(max_batch_size: int, ends: Container[int] = ()) -> list[tuple[int, int]]:
    """Split batch sizes into ranges: single sizes up to 4, then two ranges for each doubling.

    A range also ends at each of `ends`.
    """
    ranges: list[tuple[int, int]] = []
    first = 1
    for size in range(1, max_batch_size + 1):
        double = 1 << (size - 1).bit_length()
        if size in {max_batch_size, double * 3 // 4, double} or size in ends:  # 1, 2, 3, 4, 6, 8, 12, 16, 24 ...
            ranges.append((first, size))
            first = size + 1
    return ranges
