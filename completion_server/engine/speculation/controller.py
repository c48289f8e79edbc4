"""Chooses K by batch size from the time and the yield of the steps. Pure: takes steps and times, returns schedules.

The objective is goodput in tokens a second, not acceptance, which stays high even if speculation is slower. For each
range of batch sizes the controller takes the K with the highest estimated goodput (`estimates`).

- **Exploration.** The time with a K is known only after trying it, and at K = 0 acceptance is unknown. Short probes of
  another K are paid from an exploration budget, a share of the time, which bounds the loss. Unused budget is dropped
  when a probe begins, because a series of probes would be noticeable.
- **Change.** After a sudden change of acceptance, K is chosen anew for all batch sizes.
- **Hysteresis.** K changes only for clearly more goodput.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from completion_server.engine.interface import EngineStep
from completion_server.engine.speculation.estimates import Estimates, split_batch_sizes
from completion_server.engine.speculation.schedule import ScheduleRow, SpeculationSchedule

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


@dataclass(slots=True)
class _Range:
    """The K of a range of batch sizes, and its running probe."""

    first: int
    last: int
    chosen_k: int
    num_steps: int = 0
    """Steps since the last decision, or since the begin of the probe."""
    probe_k: int | None = None
    """The K that is tried for a few steps; None without a probe."""
    probed_at: dict[int, float] = field(default_factory=dict)
    """When each K was last probed."""

    @property
    def active_k(self) -> int:
        """The K of the next step, probes included."""
        return self.chosen_k if self.probe_k is None else self.probe_k


class Controller:
    """Turns steps into schedules."""

    def __init__(
        self,
        operator_schedule: SpeculationSchedule,
        max_num_speculative_tokens: int,
        max_batch_size: int,
        estimates: Estimates | None = None,
    ) -> None:
        """Begin with the operator's schedule, and with the estimates of a trial."""
        self._max_k = max_num_speculative_tokens
        self._estimates = estimates or Estimates(max_num_speculative_tokens, max_batch_size)
        self._ranges = [
            _Range(first, last, operator_schedule.num_speculative_tokens(last))
            for first, last in split_batch_sizes(max_batch_size, {row.last for row in operator_schedule.rows})
        ]
        self._budget_s = math.inf
        """The exploration budget: the time that a probe may take. The first probe is free."""

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
        has_changed = self._estimates.add(step, now)
        each = next((each for each in self._ranges if step.num_seqs <= each.last), self._ranges[-1])
        k_before = each.active_k
        if step.seconds is not None:
            self._budget_s += step.seconds * (_EXPLORATION_SHARE if each.probe_k is None else -1)
            each.num_steps += 1
        if each.num_steps >= (_MIN_STEPS_BETWEEN if each.probe_k is None else _PROBE_STEPS):
            each.num_steps, each.probe_k = 0, None
            if not self._choose(each):
                self._begin_probe(each, now)
        if has_changed:
            for other in self._ranges:
                if self._choose(other):
                    other.probe_k = None
        return self.active if has_changed or each.active_k != k_before else None

    def _choose(self, each: _Range) -> bool:
        """Change to the K with the highest goodput, if that is clearly higher; return whether it changed."""
        expected = {k: self._estimates.goodput(each.last, k) or 0.0 for k in range(self._max_k + 1)}
        best, current = max(expected, key=lambda k: expected[k]), expected[each.chosen_k]
        if not current or expected[best] <= current * (1 + _MIN_GAIN):
            return False
        each.chosen_k = best
        return True

    def _begin_probe(self, each: _Range, now: float) -> None:
        """Try another K for a few steps, if one is worth measuring and the budget covers it."""
        times = self._estimates.times(each.last)
        own_s, k = times.seconds(each.chosen_k), next(self._worth_probing(each, now), None)
        if own_s is None or k is None:
            return
        cost_s = _PROBE_STEPS * (times.seconds(k) or own_s) * each.last
        if self._budget_s >= cost_s:
            self._budget_s = cost_s
            each.probe_k, each.probed_at[k] = k, now

    def _worth_probing(self, each: _Range, now: float) -> Iterator[int]:
        """Yield other values of K, the most informative first."""
        if each.chosen_k == 0 and now - self._estimates.acceptance.drafted_at > _ACCEPTANCE_STALE_AFTER_S:
            yield min(_ACCEPTANCE_PROBE_K, self._max_k)
        own, times = each.chosen_k, self._estimates.times(each.last)
        near = {0, 1, own - 1, own + 1, own + 2} & set(range(self._max_k + 1)) - {own}
        stale = [k for k in near if times.age_s(k, now) > _STALE_AFTER_S]
        yield from sorted(stale, key=lambda k: (each.probed_at.get(k, -1.0), k))


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
        since = now if self._since is None else self._since
        if self.is_off:
            if now - since < self._off_s:
                return False
            self.is_off, self._since, self._off_s = False, now, min(2 * self._off_s, _MAX_OFF_S)
            return True
        if largest_k > 0:
            self._since, self._off_s = None, _MIN_OFF_S
        elif now - since >= _IDLE_S:
            self.switch_off(now)
        else:
            self._since = since
        return self.is_off
