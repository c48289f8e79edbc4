"""What the controller of K knows: how likely draft tokens are accepted, and how long steps take. Pure."""

import math
from collections import deque
from statistics import fmean, median

from completion_server.engine.interface import Step

_MIN_REACHED = 4.0
"""Below this weight a position's own rate is not believed; that of the position before it stands in."""

_CHANGE_SIGMAS = 3.5
"""How far the recent rate must be from the long one, in standard errors, before the long one is given up."""

_WEIGHT_AFTER_CHANGE = 4.0
"""Drafts that the recent rate then counts for: half of them are from before the change."""

_NUM_TIMES = 24
_MIN_TIMES = 3
_FORGET_AFTER_S = 60.0

_TRIAL_STEPS = 16
_TRIAL_SEQS = 128
_TRIAL_MARGIN = 0.03
_TRIAL_SIGMAS = 2.0


class _Rates:
    """Sums by position that fade: by half over so many drafts, and over so many seconds."""

    def __init__(self, num_positions: int, half_life_drafts: float, half_life_s: float) -> None:
        self._half_life_drafts = half_life_drafts
        self._half_life_s = half_life_s
        self.reached = [0.0] * num_positions
        """Draft tokens before which all were accepted."""
        self.accepted = [0.0] * num_positions

    def fade(self, num_drafts: int, seconds: float) -> None:
        keep = 2.0 ** -(num_drafts / self._half_life_drafts + seconds / self._half_life_s)
        self.reached = [keep * weight for weight in self.reached]
        self.accepted = [keep * weight for weight in self.accepted]

    def add(self, step: Step) -> None:
        reached = step.drafted[0]
        for position, (drafted, accepted) in enumerate(zip(step.drafted, step.accepted, strict=True)):
            self.reached[position] += min(reached, drafted)
            self.accepted[position] += accepted
            reached = accepted

    def begin_anew(self, recent: "_Rates") -> None:
        keep = _WEIGHT_AFTER_CHANGE / recent.reached[0]
        self.reached = [keep * weight for weight in recent.reached]
        self.accepted = [keep * weight for weight in recent.accepted]


class Acceptance:
    """How likely each draft token is accepted, now.

    Two estimates, one over the last dozen drafts and one over a thousand: the long one counts, until the short one
    shows that what is written has changed; then the long one begins anew.
    """

    def __init__(self, num_positions: int) -> None:
        """Know nothing yet."""
        self._recent = _Rates(num_positions, half_life_drafts=12, half_life_s=3)
        self._long = _Rates(num_positions, half_life_drafts=1024, half_life_s=60)
        self._at = 0.0
        self.drafted_at = -math.inf
        """When a draft was last verified."""

    def add(self, step: Step, now: float) -> None:
        """A step ended `now`."""
        if not step.drafted:
            return
        for rates in (self._recent, self._long):
            rates.fade(step.drafted[0], now - self._at)
            rates.add(step)
        self._at = self.drafted_at = now
        if self._has_changed():
            self._long.begin_anew(self._recent)

    def expected_length(self, num_draft_tokens: int) -> float | None:
        """Return the tokens that a generation should get from a step, None where nothing is known of drafts."""
        if not num_draft_tokens:
            return 1.0
        if self._long.reached[0] < _MIN_REACHED:
            return None
        length = survival = 1.0
        rate = 0.0
        for reached, accepted in zip(self._long.reached, self._long.accepted, strict=True):
            rate = accepted / reached if reached >= _MIN_REACHED else rate
            survival *= rate
            length += survival
            num_draft_tokens -= 1
            if not num_draft_tokens:
                break
        return length

    def _has_changed(self) -> bool:
        num, num_long = self._recent.reached[0], self._long.reached[0]
        if num < _MIN_REACHED:
            return False
        recent, rate = self._recent.accepted[0] / num, self._long.accepted[0] / num_long
        # Half a token more on either side keeps a rate of 0 or 1 from having no error at all.
        spread = (rate * num_long + 0.5) / (num_long + 1)
        return abs(recent - rate) > _CHANGE_SIGMAS * math.sqrt(spread * (1 - spread) / num)


class StepTimes:
    """How long a step takes for each generation in it, by K: the median of the last ones."""

    def __init__(self) -> None:
        self._times: dict[int, deque[tuple[float, float]]] = {}

    def add(self, num_draft_tokens: int, seconds: float, now: float) -> None:
        """A step took so long for each generation in it."""
        times = self._times.setdefault(num_draft_tokens, deque(maxlen=_NUM_TIMES))
        times.append((now, seconds))
        while len(times) > _MIN_TIMES and times[0][0] < now - _FORGET_AFTER_S:
            times.popleft()

    def age_s(self, num_draft_tokens: int, now: float) -> float:
        """Return how long ago a step with this K was last timed, infinite for never."""
        times = self._times.get(num_draft_tokens)
        return now - times[-1][0] if times else math.inf

    def seconds(self, num_draft_tokens: int) -> float | None:
        """Return the time with this K, measured or on the line through those that were; None where neither is known."""
        own = self._measured(num_draft_tokens)
        if own is not None:
            return own
        known = [(k, seconds) for k in self._times if (seconds := self._measured(k)) is not None]
        # K = 0 is on no line: without a draft a whole model rests.
        line = [each for each in known if each[0] > 0]
        return _on_line(line if len(line) > 1 else known, num_draft_tokens) if num_draft_tokens else None

    def _measured(self, num_draft_tokens: int) -> float | None:
        times = self._times.get(num_draft_tokens, ())
        return median(seconds for _, seconds in times) if len(times) >= _MIN_TIMES else None


class Trial:
    """What came of a change: tokens and time since."""

    def __init__(self, k_before: int) -> None:
        """Begin; `k_before` was in force until now."""
        self.k_before = k_before
        self._num_steps = 0
        self._num_seqs = 0
        self._seconds = 0.0
        self._num_tokens = 0
        self._squares = 0.0
        """Of each step's tokens for each generation, weighted by its generations."""

    def add(self, step: Step) -> None:
        """A step with the new K, whose time is known."""
        assert step.seconds is not None
        self._num_steps += 1
        self._num_seqs += step.num_seqs
        self._seconds += step.seconds
        self._num_tokens += step.num_tokens
        self._squares += step.num_tokens**2 / step.num_seqs

    @property
    def is_over(self) -> bool:
        """Whether there was enough to judge by."""
        return self._num_steps >= _TRIAL_STEPS and self._num_seqs >= _TRIAL_SEQS

    def is_worse_than(self, goodput: float) -> bool:
        """Return whether it yielded clearly less than `goodput` tokens a second."""
        mean = self._num_tokens / self._num_seqs
        variance = max(0.0, self._squares / self._num_steps - mean**2 * self._num_seqs / self._num_steps)
        error = math.sqrt(variance / self._num_seqs) / mean
        return self._num_tokens / self._seconds < goodput * (1 - _TRIAL_MARGIN - _TRIAL_SIGMAS * error)


def _on_line(points: list[tuple[int, float]], x: int) -> float | None:
    """Return the value at `x` of the line nearest to the points, None where they give no line."""
    if len(points) < 2:  # noqa: PLR2004
        return None
    mean_x, mean_y = fmean(point[0] for point in points), fmean(point[1] for point in points)
    slope = sum((px - mean_x) * (py - mean_y) for px, py in points) / sum((px - mean_x) ** 2 for px, _ in points)
    return mean_y + max(0.0, slope) * (x - mean_x)
