"""Ranges of batch sizes, each with a K of its own, and the check that follows a change of K. Pure."""

import math
from collections.abc import Container

from completion_server.engine.interface import EngineStep
from completion_server.speculation.estimates import StepTimeEstimates

_CHECK_STEPS = 16
_CHECK_SEQS = 128
_CHECK_MARGIN = 0.03
_CHECK_SIGMAS = 2.0

HOLD_S, MAX_HOLD_S = 10.0, 160.0
"""How long K stays after the first failed change, and at most; each further failure doubles it."""


class GoodputCheck:
    """Counts tokens and time since a change of K, to compare its goodput with that of the K before."""

    def __init__(self, k_before: int) -> None:
        """Begin after a change from `k_before`."""
        self.k_before = k_before
        self._num_steps = 0
        self._num_seqs = 0
        self._seconds = 0.0
        self._num_tokens = 0
        self._squares = 0.0
        """Squares of each step's tokens for each generation, weighted by its generations."""

    def add(self, step: EngineStep) -> None:
        """Take in a step with the new K whose time is known."""
        assert step.seconds is not None
        self._num_steps += 1
        self._num_seqs += step.num_seqs
        self._seconds += step.seconds
        self._num_tokens += step.num_tokens
        self._squares += step.num_tokens**2 / step.num_seqs

    @property
    def is_over(self) -> bool:
        """Whether there is enough data for a judgement."""
        return self._num_steps >= _CHECK_STEPS and self._num_seqs >= _CHECK_SEQS

    def is_worse_than(self, goodput: float) -> bool:
        """Return whether it yielded clearly less than `goodput` tokens a second."""
        mean = self._num_tokens / self._num_seqs
        variance = max(0.0, self._squares / self._num_steps - mean**2 * self._num_seqs / self._num_steps)
        error = math.sqrt(variance / self._num_seqs) / mean
        return self._num_tokens / self._seconds < goodput * (1 - _CHECK_MARGIN - _CHECK_SIGMAS * error)


class BatchSizeRange:
    """The K of a range of batch sizes, its measurements, and its running probe and check."""

    def __init__(self, first: int, last: int, k: int, hold_s: float = HOLD_S, max_hold_s: float = MAX_HOLD_S) -> None:
        """Begin with the operator's `k`. A failed change holds K for `hold_s`, doubled each time up to `max_hold_s`."""
        self.first = first
        self.last = last
        self.chosen_k = k
        self.operator_k = k
        self.times = StepTimeEstimates()
        self.num_steps = 0
        """Steps since the last decision."""
        self.probe_k: int | None = None
        """The K that is tried for a few steps; None without a probe."""
        self.num_probe_steps = 0
        self.probed_at: dict[int, float] = {}
        """When each K was last probed."""
        self.check: GoodputCheck | None = None
        self._held_until = 0.0
        self._hold_s = self._first_hold_s = hold_s
        self._max_hold_s = max_hold_s

    @property
    def active_k(self) -> int:
        """The K of the next step, probes included."""
        return self.chosen_k if self.probe_k is None else self.probe_k

    def begin_probe(self, k: int, now: float) -> None:
        """Try another K for a few steps."""
        self.probe_k, self.num_probe_steps, self.probed_at[k] = k, 0, now

    def add_time(self, step: EngineStep, at: float) -> None:
        """Take in a step whose time is known."""
        assert step.seconds is not None
        k = step.num_speculative_tokens
        self.times.add(k, step.seconds / step.num_seqs, at)
        if self.check is not None and self.probe_k is None and k == self.chosen_k:
            self.check.add(step)

    def change_to(self, k: int) -> None:
        """Choose another K and begin its check."""
        self.check = GoodputCheck(self.chosen_k)
        self.chosen_k = k

    def is_held(self, now: float) -> bool:
        """Return whether K stays after a failed change."""
        return now < self._held_until

    def judge_change(self, goodput_before: float, goodput_of_operator: float | None, now: float) -> bool:
        """End the check once it has enough data; return whether the change made goodput worse and was undone.

        `goodput_before` is the current estimate for the K before, `goodput_of_operator` that for the operator's K.
        """
        if self.check is None or not self.check.is_over:
            return False
        check, self.check = self.check, None
        if not check.is_worse_than(goodput_before):
            self._hold_s = self._first_hold_s
            return False
        is_operators_better = goodput_of_operator is not None and goodput_of_operator >= goodput_before
        self.chosen_k = self.operator_k if is_operators_better else check.k_before
        self._held_until = now + self._hold_s
        self._hold_s = min(2 * self._hold_s, self._max_hold_s)
        return True

    def forget_change(self) -> None:
        """Drop the running check, and the hold of a failed change."""
        self._held_until, self._hold_s, self.check = 0.0, self._first_hold_s, None


def split_batch_sizes(max_batch_size: int, ends: Container[int] = ()) -> list[tuple[int, int]]:
    """Split batch sizes into ranges: single sizes up to 4, then two ranges for each doubling.

    A range also ends at each of `ends`.
    """
    ranges: list[tuple[int, int]] = []
    first = 1
    for size in range(1, max_batch_size + 1):
        if size == max_batch_size or size in ends or size in _usual_ends(size):
            ranges.append((first, size))
            first = size + 1
    return ranges


def _usual_ends(size: int) -> tuple[int, int]:
    """Return the ends of ranges near a size: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    double = 1 << (size - 1).bit_length()
    return double * 3 // 4, double
