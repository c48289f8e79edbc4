"""What the controller of K knows: how likely draft tokens are accepted, and how long steps take. Pure."""

import math
from collections import deque
from statistics import fmean, median

from completion_server.engine.interface import Step

_MIN_REACHED = 4.0
"""Below this weight a position's own rate is not believed; that of the position before it stands in."""

_NUM_RECENT_STEPS = 32
"""A change in acceptance is looked for over up to so many steps with drafts."""

_CHANGE_EVIDENCE = 9.0
"""How much likelier, as a natural logarithm, the last drafts must be with a rate of their own before what came before
them is forgotten: five first tokens refused in a row where 85% used to be accepted. It is what a first change takes;
see `_Caution`."""

_MOST_CHANGE_EVIDENCE = 72.0
_REVERSED_WITHIN_S = 10.0
_CALM_HALF_LIFE_S = 60.0

_HALF_LIFE_DRAFTS = 1024
_HALF_LIFE_S = 60.0

_WARY_EVIDENCE = 20.0
_WARY_HALF_LIFE_STEPS = 128
"""Where a change takes more evidence than that, rates fade by half over so many steps: a real fall is then followed
within seconds, evidence or not."""

_NUM_TIMES = 24
_MIN_TIMES = 3
_FORGET_AFTER_S = 60.0

_TRIAL_STEPS = 16
_TRIAL_SEQS = 128
_TRIAL_MARGIN = 0.03
_TRIAL_SIGMAS = 2.0


class _Rates:
    """Sums by position that fade: by half over so many drafts, and over so many seconds."""

    def __init__(self, num_positions: int) -> None:
        self.reached = [0.0] * num_positions
        """Draft tokens before which all were accepted."""
        self.accepted = [0.0] * num_positions

    def fade(self, half_lives: float) -> None:
        keep = math.exp2(-half_lives)
        self.reached = [keep * weight for weight in self.reached]
        self.accepted = [keep * weight for weight in self.accepted]

    def add(self, step: Step) -> None:
        reached = step.drafted[0]
        for position, (drafted, accepted) in enumerate(zip(step.drafted, step.accepted, strict=True)):
            self.reached[position] += min(reached, drafted)
            self.accepted[position] += accepted
            reached = accepted

    def merge(self, other: "_Rates") -> None:
        self.reached = [ours + theirs for ours, theirs in zip(self.reached, other.reached, strict=True)]
        self.accepted = [ours + theirs for ours, theirs in zip(self.accepted, other.accepted, strict=True)]

    @property
    def first_rate(self) -> float:
        """The chance of the first draft token: half a token more on either side, as no rate is 0 or 1 for sure."""
        return (self.accepted[0] + 0.5) / (self.reached[0] + 1)


class _Caution:
    """How much evidence a change takes.

    Completions differ in how predictable they are, and one after another looks like change after change, each undone by
    the next. Where that happens, each takes twice the evidence of the one before, and calm forgets it slowly.
    """

    def __init__(self) -> None:
        self._extra = 0.0
        self._at = 0.0
        self._change: tuple[float, bool] | None = None
        """When the last one was, and whether drafts fared better after it."""

    def needed(self, now: float) -> float:
        """Return the logarithm of a likelihood ratio that a change must reach."""
        return _CHANGE_EVIDENCE + self._extra * math.exp2((self._at - now) / _CALM_HALF_LIFE_S)

    def is_reversal(self, *, is_better: bool, now: float) -> bool:
        """Take note of a change; return whether it undoes one just before it, so that neither was one."""
        before, self._change = self._change, (now, is_better)
        if before is None or before[1] == is_better or now - before[0] > _REVERSED_WITHIN_S:
            return False
        self._extra = min(2 * self.needed(now), _MOST_CHANGE_EVIDENCE) - _CHANGE_EVIDENCE
        self._at, self._change = now, None
        return True

    def is_wary(self, now: float) -> bool:
        """Whether changes take so much evidence that rates had better follow by themselves."""
        return self.needed(now) > _WARY_EVIDENCE


class Acceptance:
    """How likely each draft token is accepted, now: rates over the last thousand drafts, or since they changed.

    A change is found as in sequential analysis: for the last one, two, three ... steps the likelihood of their first
    draft tokens with a rate of their own is held against that with the long rate.
    """

    def __init__(self, num_positions: int) -> None:
        """Know nothing yet."""
        self._rates = _Rates(num_positions)
        self._forgotten = _Rates(num_positions)
        """What was known before the last change."""
        self._caution = _Caution()
        self._recent: deque[Step] = deque(maxlen=_NUM_RECENT_STEPS)
        self._at = 0.0
        self.drafted_at = -math.inf
        """When a draft was last verified."""

    def add(self, step: Step, now: float) -> bool:
        """A step ended `now`; return whether what was known before it no longer holds."""
        if not step.drafted:
            return False
        half_lives = step.drafted[0] / _HALF_LIFE_DRAFTS
        if self._caution.is_wary(now):
            half_lives = max(half_lives, 1 / _WARY_HALF_LIFE_STEPS)
        self._rates.fade(half_lives + (now - self._at) / _HALF_LIFE_S)
        self._rates.add(step)
        self._recent.append(step)
        self._at = self.drafted_at = now
        num_since = self._num_since_change(self._caution.needed(now))
        return self._change(list(self._recent)[-num_since:], now) if num_since else False

    def _change(self, since: list[Step], now: float) -> bool:
        """Forget what was known before some steps; or, where they only undo a change, learn from all of it.

        Return whether it was forgotten.
        """
        before, after = self._rates, _Rates(len(self._rates.reached))
        for step in since:
            after.add(step)
        is_reversal = self._caution.is_reversal(is_better=after.first_rate > before.first_rate, now=now)
        if is_reversal:
            before.merge(self._forgotten)
            self._forgotten = _Rates(len(before.reached))
        else:
            self._rates, self._forgotten = after, before
        self._recent.clear()
        return not is_reversal

    def expected_length(self, num_draft_tokens: int) -> float | None:
        """Return the tokens that a generation should get from a step, None where nothing is known of drafts."""
        if not num_draft_tokens:
            return 1.0
        if self._rates.reached[0] < _MIN_REACHED:
            return None
        length = survival = 1.0
        rate = 0.0
        for reached, accepted in zip(self._rates.reached, self._rates.accepted, strict=True):
            rate = accepted / reached if reached >= _MIN_REACHED else rate
            survival *= rate
            length += survival
            num_draft_tokens -= 1
            if not num_draft_tokens:
                break
        return length

    def _num_since_change(self, needed: float) -> int:
        """Return how many steps ago acceptance most likely changed, 0 where it has not."""
        rate = self._rates.first_rate
        num = num_accepted = 0
        most, num_since = needed, 0
        for at, step in enumerate(reversed(self._recent), 1):
            num += step.drafted[0]
            num_accepted += step.accepted[0]
            evidence = _evidence(num_accepted, num, rate)
            if num >= _MIN_REACHED and evidence > most:
                most, num_since = evidence, at
        return num_since


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

    @property
    def can_compare(self) -> bool:
        """Whether two draft lengths have been measured: then something is known of each."""
        return sum(self._measured(k) is not None for k in self._times) > 1

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


def _evidence(num_accepted: int, num: int, rate: float) -> float:
    """Return by how much, in natural logarithms, the counts are likelier with their own rate than with `rate`."""
    evidence = 0.0
    for count, chance in ((num_accepted, rate), (num - num_accepted, 1 - rate)):
        if count:
            evidence += count * math.log(count / num / chance)
    return evidence
