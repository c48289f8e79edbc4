"""Chooses K by batch size from what the steps took and yielded. Pure: steps and times go in, schedules come out.

Goodput is what counts: tokens a second, not acceptance, which stays high exactly where speculation loses. For each
range of batch sizes the controller keeps how long a step takes with each K, and over all of them how likely each draft
token is accepted; a step of b generations then yields b (1 + s1 + ... + sK) tokens, where si is the chance that the
first i draft tokens are all accepted, in T(b, K) seconds. The K with the most wins.

- **Exploration.** What a K costs is known only by trying it, and at K = 0 nothing is known of acceptance. Short bursts
  of another K are paid out of a share of the time: no more than that share can be lost by them. What one leaves over
  is not saved up: bursts one after another would make a bad minute.
- **Change.** Where drafts fare otherwise all at once, K is chosen anew for all batch sizes, by the step times of the
  nearest ones where a range has none of its own.
- **Hysteresis.** A K is left only for one that promises clearly more.
- **Trial.** After a change, what came of it is held against what the K before would now yield. If that is less, the
  operator's table is in force for that range again, for a while that doubles with each failure; or, where the table
  promises even less, the K before.
"""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass

from completion_server.engine.interface import Step
from completion_server.speculation.estimators import Acceptance, StepTimes, Trial
from completion_server.speculation.schedule import Row, Schedule

_BURST_STEPS = 6
"""Steps of a burst; the first ones mix two draft lengths and are not timed."""

_MIN_STEPS_BETWEEN = 4
"""Steps in a range between two looks at it."""

_PROBE_DRAFT = 2
"""K of a burst that asks for acceptance alone."""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """How bold the controller is."""

    exploration_share: float = 0.03
    """Of the time, what bursts may take."""
    min_gain: float = 0.02
    """A K is left for one that promises this much more, as a share."""
    stale_after_s: float = 20.0
    """A step time is asked for again after this long."""
    acceptance_stale_after_s: float = 1.0
    """Where nothing is drafted, acceptance is asked for again after this long."""
    hold_s: float = 10.0
    """How long the operator's table holds after a change that made things worse; doubles each time, up to"""
    max_hold_s: float = 160.0
    """this."""


class _Range:
    """What is known of a range of batch sizes."""

    def __init__(self, first: int, last: int, k: int, settings: ControlSettings) -> None:
        self.first = first
        self.last = last
        self.k = k
        """K in force, but for bursts."""
        self.table_k = k
        self.times = StepTimes()
        self.burst_k: int | None = None
        self.burst_steps = 0
        self.last_burst_at: dict[int, float] = {}
        self.num_steps = 0
        """Steps since the last look at it."""
        self.trial: Trial | None = None
        self.held_until = 0.0
        self.hold_s = settings.hold_s

    @property
    def k_now(self) -> int:
        """K in force, bursts included."""
        return self.k if self.burst_k is None else self.burst_k


class Controller:
    """Turns steps into schedules."""

    def __init__(
        self, table: Schedule, ceiling: int, max_batch_size: int, settings: ControlSettings | None = None
    ) -> None:
        """Begin with the operator's table."""
        self._settings = settings or ControlSettings()
        self._ceiling = ceiling
        self._max_batch_size = max_batch_size
        self._acceptance = Acceptance(ceiling)
        self._ranges = [
            _Range(first, last, table.num_draft_tokens(last), self._settings)
            for first, last in _ranges(max_batch_size, {row.last for row in table.rows})
        ]
        self._range_of = [self._ranges[0], *(each for each in self._ranges for _ in range(each.first, each.last + 1))]
        self._credit_s = math.inf
        """Time that a burst may take. The first one is free."""
        self._before: tuple[Step, float] | None = None
        """The step before, and when it ended."""

    @property
    def schedule(self) -> Schedule:
        """What should be in force now, bursts included."""
        return Schedule.of_rows(Row(each.first, each.last, each.k_now) for each in self._ranges)

    @property
    def chosen(self) -> Schedule:
        """What is held best, whatever a burst tries at the moment."""
        return Schedule.of_rows(Row(each.first, each.last, each.k) for each in self._ranges)

    def hear(self, step: Step, now: float) -> Schedule | None:
        """Take in a step that ended `now`; return a new schedule where one should come into force."""
        has_changed = self._acceptance.add(step, now)
        before, self._before = self._before, (step, now)
        if before is None:
            return None
        # Which K the drafts of a step had shows in the next one, which verifies them: only then is its time understood.
        timed, at = before
        each = self._range_of[min(timed.num_seqs, self._max_batch_size)]
        k_before = each.k_now
        self._pay(each, timed)
        is_clean = timed.seconds is not None and not (timed.has_prompts or timed.has_undrafted or step.has_undrafted)
        if is_clean and timed.num_draft_tokens == step.num_draft_tokens:
            self._learn(each, timed, at)
        self._decide(each, at)
        if has_changed:
            self._move_all(at)
        return self.schedule if has_changed or each.k_now != k_before else None

    def _pay(self, each: _Range, step: Step) -> None:
        """Give exploration its share of the step's time; take what a burst's step took."""
        if step.seconds is None:
            return
        if each.burst_k is not None:
            self._credit_s -= step.seconds
            each.burst_steps += 1
        else:
            self._credit_s += self._settings.exploration_share * step.seconds
        each.num_steps += 1

    def _learn(self, each: _Range, step: Step, at: float) -> None:
        assert step.seconds is not None
        k = step.num_draft_tokens
        each.times.add(k, step.seconds / step.num_seqs, at)
        if each.trial is not None and each.burst_k is None and k == each.k:
            each.trial.add(step)

    def _decide(self, each: _Range, now: float) -> None:
        """Change K of a range, or begin or end a burst, where that is due."""
        if each.burst_k is not None:
            if each.burst_steps < _BURST_STEPS:
                return
            each.burst_k = None
        elif each.num_steps < _MIN_STEPS_BETWEEN:
            return
        each.num_steps = 0
        if each.trial is not None and self._judge(each, each.trial, now):
            return
        if not self._move(each, now):
            self._begin_burst(each, now)

    def _judge(self, each: _Range, trial: Trial, now: float) -> bool:
        """Undo a change that made goodput worse; return whether it did."""
        expected = self._goodput(each, trial.k_before)
        if expected is None or not trial.is_over:
            return False
        each.trial = None
        if not trial.is_worse_than(expected):
            each.hold_s = self._settings.hold_s
            return False
        of_table = self._goodput(each, each.table_k)
        each.k = each.table_k if of_table is not None and of_table >= expected else trial.k_before
        each.held_until = now + each.hold_s
        each.hold_s = min(2 * each.hold_s, self._settings.max_hold_s)
        return True

    def _move_all(self, now: float) -> None:
        """Go to what promises the most now that drafts fare otherwise, for batch sizes that are not about, too."""
        for each in self._ranges:
            # What failed before the change says nothing of now, nor does a trial that began then.
            each.held_until, each.hold_s, each.trial = 0.0, self._settings.hold_s, None
            if self._move(each, now):
                each.burst_k = None

    def _move(self, each: _Range, now: float) -> bool:
        """Go to the K that promises the most, where that is clearly more; return whether it did."""
        current = self._goodput(each, each.k)
        if current is None or now < each.held_until:
            return False
        promised = {k: self._goodput(each, k) or 0.0 for k in range(self._ceiling + 1)}
        best = max(promised, key=lambda k: promised[k])
        if promised[best] <= current * (1 + self._settings.min_gain):
            return False
        each.trial = Trial(each.k)
        each.k = best
        return True

    def _begin_burst(self, each: _Range, now: float) -> None:
        """Try another K for a few steps, where one is worth knowing and paid for."""
        own_s = each.times.seconds(each.k)
        if own_s is None:
            return
        for k in self._worth_trying(each, now):
            cost_s = _BURST_STEPS * (each.times.seconds(k) or own_s) * each.last
            if self._credit_s >= cost_s:
                self._credit_s = cost_s
                each.burst_k, each.burst_steps, each.last_burst_at[k] = k, 0, now
            return

    def _worth_trying(self, each: _Range, now: float) -> Iterator[int]:
        """Yield other Ks, the most worth knowing first."""
        if each.k == 0 and now - self._acceptance.drafted_at > self._settings.acceptance_stale_after_s:
            yield min(_PROBE_DRAFT, self._ceiling)
        near = {0, 1, each.k - 1, each.k + 1, each.k + 2} & set(range(self._ceiling + 1)) - {each.k}
        stale = [k for k in near if each.times.age_s(k, now) > self._settings.stale_after_s]
        yield from sorted(stale, key=lambda k: (each.last_burst_at.get(k, -1.0), k))

    def _goodput(self, each: _Range, k: int) -> float | None:
        """Return the tokens a second that the range should get with K, None where that can't be told."""
        seconds = self._known_times(each).seconds(k)
        length = self._acceptance.expected_length(k)
        return None if seconds is None or length is None else length / seconds

    def _known_times(self, each: _Range) -> StepTimes:
        """Return the step times of a range; where it has had too few steps, those of the one nearest to it that has."""
        at = self._ranges.index(each)
        nearest = sorted(range(len(self._ranges)), key=lambda other: abs(other - at))
        return next(
            (self._ranges[other].times for other in nearest if self._ranges[other].times.can_compare), each.times
        )


def _ranges(max_batch_size: int, ends: Container[int] = ()) -> list[tuple[int, int]]:
    """Split the batch sizes: each size alone up to 4, then two ranges for each doubling, and behind each of `ends`."""
    ranges: list[tuple[int, int]] = []
    first = 1
    for size in range(1, max_batch_size + 1):
        if size == max_batch_size or size in ends or size in _usual_ends(size):
            ranges.append((first, size))
            first = size + 1
    return ranges


def _usual_ends(size: int) -> tuple[int, int]:
    """Return where a range ends near a size: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    double = 1 << (size - 1).bit_length()
    return double * 3 // 4, double
