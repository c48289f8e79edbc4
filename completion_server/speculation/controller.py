"""Chooses K by batch size from the time and the yield of the steps. Pure: takes steps and times, returns schedules.

The objective is goodput in tokens a second, not acceptance, which stays high even if speculation is slower. For
each range of batch sizes the controller estimates how long a step takes with each K, and over all of them how likely
each draft token is accepted. A step of b generations yields b (1 + s1 + ... + sK) tokens in T(b, K) seconds; si is the
chance that the first i draft tokens are all accepted. The controller chooses the K with the highest goodput.

- **Exploration.** The time with a K is known only after trying it, and at K = 0 acceptance is unknown. Short probes of
  another K are paid from an exploration budget, a share of the time, which bounds the loss. Unused budget is dropped
  when a probe begins, because a series of probes would be noticeable.
- **Change.** After a sudden change of acceptance, K is chosen anew for all batch sizes. A range without measurements
  uses the step times of the nearest range that has some.
- **Hysteresis.** K changes only for clearly more goodput.
- **Correction.** Predictions are multiplied by the gain that a trial at start measured over the one that its steps
  predicted, so that both choose the same K for the same text.
- **Check.** After a change, its goodput is compared with the current estimate for the K before. If it is less, the
  range returns to the operator's K, for a time that doubles with each failure; or to the K before, if the operator's
  should yield less.
"""

import math
from collections.abc import Iterator

from completion_server.engine.interface import EngineStep
from completion_server.speculation.batch_sizes import BatchSizeRange, split_batch_sizes
from completion_server.speculation.calibration import Corrections
from completion_server.speculation.estimates import AcceptanceEstimates, StepTimeEstimates
from completion_server.speculation.schedule import ScheduleRow, SpeculationSchedule

_PROBE_STEPS = 6
"""Steps of a probe; the first ones mix two values of K and are not timed."""

_MIN_STEPS_BETWEEN = 4
"""Steps in a range between two decisions."""

_EXPLORATION_SHARE = 0.03
"""Share of the time that probes may take."""

_MIN_GAIN = 0.02
"""Expected relative gain from which K changes."""

_STALE_AFTER_S = 20.0
"""Age from which a step time is measured again."""

_ACCEPTANCE_STALE_AFTER_S = 1.0
"""Age from which acceptance is measured again while nothing is drafted."""

_ACCEPTANCE_PROBE_K = 2
"""K of a probe that measures only acceptance."""

_IDLE_S = 60.0
"""How long the controller must have chosen K = 0 for all batch sizes."""
_MIN_OFF_S = 600.0
"""How long drafts are first switched off; each time that they did not pay again doubles it."""
_MAX_OFF_S = 4 * 3600.0


class Controller:
    """Turns steps into schedules."""

    def __init__(
        self,
        operator_schedule: SpeculationSchedule,
        max_num_speculative_tokens: int,
        max_batch_size: int,
        corrections: Corrections | None = None,
    ) -> None:
        """Begin with the operator's schedule."""
        self._corrections = corrections or Corrections()
        self._max_k = max_num_speculative_tokens
        self._max_batch_size = max_batch_size
        self._acceptance = AcceptanceEstimates(max_num_speculative_tokens)
        self._ranges = [
            BatchSizeRange(first, last, operator_schedule.num_speculative_tokens(last))
            for first, last in split_batch_sizes(max_batch_size, {row.last for row in operator_schedule.rows})
        ]
        self._trial_times = [self._corrections.times_at(each.last) for each in self._ranges]
        self._range_of = [self._ranges[0], *(each for each in self._ranges for _ in range(each.first, each.last + 1))]
        self._budget_s = math.inf
        """The exploration budget: the time that a probe may take. The first probe is free."""
        self._before: tuple[EngineStep, float] | None = None
        """The previous step, and when it ended."""

    @property
    def active(self) -> SpeculationSchedule:
        """The schedule of the next step, probes included."""
        return SpeculationSchedule.of_rows(ScheduleRow(each.first, each.last, each.active_k) for each in self._ranges)

    @property
    def chosen(self) -> SpeculationSchedule:
        """The schedule with the highest expected goodput, without probes."""
        return SpeculationSchedule.of_rows(ScheduleRow(each.first, each.last, each.chosen_k) for each in self._ranges)

    def observe(self, step: EngineStep, now: float) -> SpeculationSchedule | None:
        """Take in a step that ended `now`; return a schedule if another one should become active."""
        has_changed = self._acceptance.add(step, now)
        before, self._before = self._before, (step, now)
        if before is None:
            return None
        # The drafts that a step proposed are verified in the next one, which shows their K: a step's time is understood
        # one step later.
        timed, at = before
        each = self._range_of[min(timed.num_seqs, self._max_batch_size)]
        k_before = each.active_k
        self._update_budget(each, timed)
        is_clean = timed.seconds is not None and not (timed.has_prompts or timed.has_undrafted or step.has_undrafted)
        if is_clean and timed.num_speculative_tokens == step.num_speculative_tokens:
            each.add_time(timed, at)
        self._decide(each, at)
        if has_changed:
            self._choose_all(at)
        return self.active if has_changed or each.active_k != k_before else None

    def _update_budget(self, each: BatchSizeRange, step: EngineStep) -> None:
        """Add the step's share to the exploration budget; subtract the step of a probe."""
        if step.seconds is None:
            return
        if each.probe_k is not None:
            self._budget_s -= step.seconds
            each.num_probe_steps += 1
        else:
            self._budget_s += _EXPLORATION_SHARE * step.seconds
        each.num_steps += 1

    def _decide(self, each: BatchSizeRange, now: float) -> None:
        """Change K of a range, or begin or end a probe, if that is due."""
        if each.probe_k is not None:
            if each.num_probe_steps < _PROBE_STEPS:
                return
            each.probe_k = None
        elif each.num_steps < _MIN_STEPS_BETWEEN:
            return
        each.num_steps = 0
        if not self._undo_failed_change(each, now) and not self._choose(each, now):
            self._begin_probe(each, now)

    def _undo_failed_change(self, each: BatchSizeRange, now: float) -> bool:
        if each.check is None:
            return False
        # The check counts tokens and time of steps: its measurement is corrected as the predictions are.
        corrected = self._corrections.factor(each.last, each.chosen_k)
        before, operators = (self._goodput(each, k) for k in (each.check.k_before, each.operator_k))
        if before is None:
            return False
        return each.judge_change(before / corrected, None if operators is None else operators / corrected, now)

    def _choose_all(self, now: float) -> None:
        """Choose K anew for all batch sizes after a change of acceptance."""
        for each in self._ranges:
            # Changes of K that failed or were checked before acceptance changed say nothing about the time after it.
            each.forget_change()
            if self._choose(each, now):
                each.probe_k = None

    def _choose(self, each: BatchSizeRange, now: float) -> bool:
        """Change to the K with the highest goodput, if that is clearly higher; return whether it changed."""
        current = self._goodput(each, each.chosen_k)
        if current is None or each.is_held(now):
            return False
        expected = {k: self._goodput(each, k) or 0.0 for k in range(self._max_k + 1)}
        best = max(expected, key=lambda k: expected[k])
        if expected[best] <= current * (1 + _MIN_GAIN):
            return False
        each.change_to(best)
        return True

    def _begin_probe(self, each: BatchSizeRange, now: float) -> None:
        """Try another K for a few steps, if one is worth measuring and the budget covers it."""
        own_s = each.times.seconds(each.chosen_k)
        if own_s is None:
            return
        k = next(self._worth_probing(each, now), None)
        if k is None:
            return
        cost_s = _PROBE_STEPS * (each.times.seconds(k) or own_s) * each.last
        if self._budget_s >= cost_s:
            self._budget_s = cost_s
            each.begin_probe(k, now)

    def _worth_probing(self, each: BatchSizeRange, now: float) -> Iterator[int]:
        """Yield other values of K, the most informative first."""
        if each.chosen_k == 0 and now - self._acceptance.drafted_at > _ACCEPTANCE_STALE_AFTER_S:
            yield min(_ACCEPTANCE_PROBE_K, self._max_k)
        own = each.chosen_k
        near = {0, 1, own - 1, own + 1, own + 2} & set(range(self._max_k + 1)) - {own}
        stale = [k for k in near if each.times.age_s(k, now) > _STALE_AFTER_S]
        yield from sorted(stale, key=lambda k: (each.probed_at.get(k, -1.0), k))

    def _goodput(self, each: BatchSizeRange, k: int) -> float | None:
        """Return the expected tokens a second of the range with K, None without enough data."""
        seconds = self._known_times(each).seconds(k)
        length = self._acceptance.expected_length(k)
        return None if seconds is None or length is None else self._corrections.factor(each.last, k) * length / seconds

    def _known_times(self, each: BatchSizeRange) -> StepTimeEstimates:
        """Return the step times of a range, those of the trial, or of the nearest range with enough data."""
        at = self._ranges.index(each)
        if not each.times.can_compare and self._trial_times[at].can_compare:
            return self._trial_times[at]
        nearest = sorted(range(len(self._ranges)), key=lambda other: abs(other - at))
        return next(
            (self._ranges[other].times for other in nearest if self._ranges[other].times.can_compare), each.times
        )


class DraftRest:
    """Decides when a controller that wants no drafts has the draft model switched off, and for how long.

    Switching on again makes every prompt be computed anew once, so it is tried rarely.
    """

    def __init__(self) -> None:
        """Begin with drafts switched on."""
        self.is_off = False
        self._off_s = _MIN_OFF_S
        self._since: float | None = None
        """Since when K = 0 is chosen; while drafts are off, since when they are."""

    def switch_off(self, now: float) -> None:
        """Begin a time without drafts."""
        self.is_off, self._since = True, now

    def observe(self, largest_k: int, now: float) -> bool:
        """Take in the largest K that is chosen; return whether `is_off` has changed."""
        if self.is_off:
            assert self._since is not None
            if now - self._since < self._off_s:
                return False
            self.is_off, self._since, self._off_s = False, now, min(2 * self._off_s, _MAX_OFF_S)
            return True
        if largest_k > 0:
            self._since, self._off_s = None, _MIN_OFF_S
        elif self._since is None:
            self._since = now
        elif now - self._since >= _IDLE_S:
            self.switch_off(now)
        return self.is_off
