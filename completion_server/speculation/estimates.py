"""Estimates how likely each draft token is accepted now, and how long a step takes with each K. Pure."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean, median

from completion_server.engine.interface import EngineStep

_MIN_REACHED = 4.0
"""A position with fewer drafts than this uses the rate of the position before it."""

_NUM_RECENT_STEPS = 32
"""A change is searched for in up to this many steps with drafts."""

_MIN_LOG_RATIO = 9.0
"""The log-likelihood ratio that the first change must reach: that of five first tokens rejected in a row after an
acceptance of 85%. `ChangeDetector` raises it."""

_MAX_LOG_RATIO = 72.0
_REVERSED_WITHIN_S = 10.0
_CALM_HALF_LIFE_S = 60.0

_HALF_LIFE_DRAFTS = 1024
_HALF_LIFE_S = 60.0

_WARY_LOG_RATIO = 20.0
_WARY_HALF_LIFE_STEPS = 128
"""Above `_WARY_LOG_RATIO` the counts decay by half over this many steps, so that the rates follow a real fall within
seconds even if it is not detected."""

_NUM_TIMES = 24
_MIN_TIMES = 3
_FORGET_AFTER_S = 60.0


class _DecayingCounts:
    """Counts by position with exponential decay."""

    def __init__(self, num_positions: int) -> None:
        self.reached = [0.0] * num_positions
        """Draft tokens before which all were accepted."""
        self.accepted = [0.0] * num_positions

    def decay(self, half_lives: float) -> None:
        keep = math.exp2(-half_lives)
        self.reached = [keep * weight for weight in self.reached]
        self.accepted = [keep * weight for weight in self.accepted]

    def add(self, step: EngineStep) -> None:
        reached = step.drafted[0]
        for position, (drafted, accepted) in enumerate(zip(step.drafted, step.accepted, strict=True)):
            self.reached[position] += min(reached, drafted)
            self.accepted[position] += accepted
            reached = accepted

    def merge(self, other: "_DecayingCounts") -> None:
        self.reached = [ours + theirs for ours, theirs in zip(self.reached, other.reached, strict=True)]
        self.accepted = [ours + theirs for ours, theirs in zip(self.accepted, other.accepted, strict=True)]

    @property
    def first_rate(self) -> float:
        """The acceptance of the first draft token, smoothed by half a token so that it is never exactly 0 or 1."""
        return (self.accepted[0] + 0.5) / (self.reached[0] + 1)


class ChangeDetector:
    """Detects changes of the first draft token's acceptance by sequential analysis.

    For the last one, two, three ... steps it compares the likelihood of the counts under a rate of their own with that
    under the long-term rate. A change is detected when the log-likelihood ratio reaches a threshold.

    Completions differ in how predictable they are, so a sequence of them looks like changes that undo each other. Each
    such reversal doubles the threshold, which decays back slowly.
    """

    def __init__(self) -> None:
        """Begin with the lowest threshold."""
        self._recent: deque[EngineStep] = deque(maxlen=_NUM_RECENT_STEPS)
        self._extra = 0.0
        """The increase of the threshold by the last reversal."""
        self._raised_at = 0.0
        self._last_change: tuple[float, bool] | None = None
        """The time of the last change, and whether acceptance rose."""

    def add(self, step: EngineStep) -> None:
        """Take in a step with drafts."""
        self._recent.append(step)

    def threshold(self, now: float) -> float:
        """Return the log-likelihood ratio that a change must reach."""
        return _MIN_LOG_RATIO + self._extra * math.exp2((self._raised_at - now) / _CALM_HALF_LIFE_S)

    def is_wary(self, now: float) -> bool:
        """Return whether the threshold is so high that the rates should follow faster by themselves."""
        return self.threshold(now) > _WARY_LOG_RATIO

    def steps_since_change(self, rate: float, now: float) -> list[EngineStep]:
        """Return the steps since the most likely change from `rate`; none if there was no change."""
        num = num_accepted = num_since = 0
        largest = self.threshold(now)
        for num_steps, step in enumerate(reversed(self._recent), 1):
            num += step.drafted[0]
            num_accepted += step.accepted[0]
            ratio = _log_likelihood_ratio(num_accepted, num, rate)
            if num >= _MIN_REACHED and ratio > largest:
                largest, num_since = ratio, num_steps
        return list(self._recent)[-num_since:] if num_since else []

    def record_change(self, *, is_better: bool, now: float) -> bool:
        """Record a change; return whether it reverses one just before it, so that neither was a real change."""
        self._recent.clear()
        before, self._last_change = self._last_change, (now, is_better)
        if before is None or before[1] == is_better or now - before[0] > _REVERSED_WITHIN_S:
            return False
        self._extra = min(2 * self.threshold(now), _MAX_LOG_RATIO) - _MIN_LOG_RATIO
        self._raised_at, self._last_change = now, None
        return True


class AcceptanceEstimates:
    """Acceptance rates by position, over the last thousand drafts or since the last change."""

    def __init__(self, num_positions: int) -> None:
        """Begin without data."""
        self._counts = _DecayingCounts(num_positions)
        self._forgotten = _DecayingCounts(num_positions)
        """The counts before the last change."""
        self._detector = ChangeDetector()
        self._at = 0.0
        self.drafted_at = -math.inf
        """When a draft was last verified."""

    def add(self, step: EngineStep, now: float) -> bool:
        """Take in a step that ended `now`; return whether the estimates before it no longer hold."""
        if not step.drafted:
            return False
        half_lives = step.drafted[0] / _HALF_LIFE_DRAFTS
        if self._detector.is_wary(now):
            half_lives = max(half_lives, 1 / _WARY_HALF_LIFE_STEPS)
        self._counts.decay(half_lives + (now - self._at) / _HALF_LIFE_S)
        self._counts.add(step)
        self._detector.add(step)
        self._at = self.drafted_at = now
        since = self._detector.steps_since_change(self._counts.first_rate, now)
        return self._change(since, now) if since else False

    def _change(self, since: list[EngineStep], now: float) -> bool:
        """Forget the counts before a change, or restore them if it only reverses one; return whether it was real."""
        before, after = self._counts, _DecayingCounts(len(self._counts.reached))
        for step in since:
            after.add(step)
        is_reversal = self._detector.record_change(is_better=after.first_rate > before.first_rate, now=now)
        if is_reversal:
            before.merge(self._forgotten)
            self._forgotten = _DecayingCounts(len(before.reached))
        else:
            self._counts, self._forgotten = after, before
        return not is_reversal

    def expected_length(self, num_speculative_tokens: int) -> float | None:
        """Return the tokens that a generation should get from a step, None without data."""
        if not num_speculative_tokens:
            return 1.0
        if self._counts.reached[0] < _MIN_REACHED:
            return None
        length = survival = 1.0
        rate = 0.0
        positions = zip(self._counts.reached, self._counts.accepted, strict=True)
        for _, (reached, accepted) in zip(range(num_speculative_tokens), positions, strict=False):
            rate = accepted / reached if reached >= _MIN_REACHED else rate
            survival *= rate
            length += survival
        return length


def _log_likelihood_ratio(num_accepted: int, num: int, rate: float) -> float:
    """Return the log of the counts' likelihood under their own rate over that under `rate`."""
    ratio = 0.0
    for count, chance in ((num_accepted, rate), (num - num_accepted, 1 - rate)):
        if count:
            ratio += count * math.log(count / num / chance)
    return ratio


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
