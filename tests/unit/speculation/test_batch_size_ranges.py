"""Ranges of batch sizes, and the check after a change of K."""

import pytest

from completion_server.engine.interface import EngineStep
from completion_server.speculation.batch_sizes import BatchSizeRange, split_batch_sizes


@pytest.mark.parametrize(("goodput_of_operator", "k"), [(5.0, 2), (3.0, 1), (None, 1)])
def test_a_failed_change_returns_to_the_better_of_two_for_a_while(goodput_of_operator: float | None, k: int) -> None:
    """Those two are the operator's K, 2, and the K before the change, 1."""
    under_test = BatchSizeRange(4, 4, 2, hold_s=10.0, max_hold_s=15.0)
    for hold_s in (10.0, 15.0, 15.0):
        under_test.change_to(1)
        under_test.change_to(4)
        assert not under_test.judge_change(4.0, goodput_of_operator, now=5.0), "too few steps"
        for at in range(40):
            under_test.add_time(EngineStep(4, 8, 4.0, drafted=(4,) * 4, accepted=(1,) * 4), at)
        assert under_test.judge_change(4.0, goodput_of_operator, now=5.0)
        assert under_test.chosen_k == k
        assert under_test.is_held(4.9 + hold_s)
        assert not under_test.is_held(5.0 + hold_s)


def test_a_change_that_is_no_worse_stays() -> None:
    under_test = BatchSizeRange(4, 4, 2, hold_s=10.0, max_hold_s=160.0)
    under_test.change_to(4)
    for at in range(40):
        under_test.add_time(EngineStep(4, 8, 2.0, drafted=(4,) * 4, accepted=(1,) * 4), at)
    assert not under_test.judge_change(4.0, None, now=5.0)
    assert (under_test.chosen_k, under_test.check, under_test.is_held(5.0)) == (4, None, False)


@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 7, 16, 100])
def test_the_ranges_hold_each_batch_size_once(max_batch_size: int) -> None:
    ranges = split_batch_sizes(max_batch_size, {5})
    assert [size for first, last in ranges for size in range(first, last + 1)] == list(range(1, max_batch_size + 1))
    assert max_batch_size < 5 or 5 in [last for _, last in ranges]


def test_a_change_of_acceptance_ends_the_hold_of_a_failed_change() -> None:
    under_test = BatchSizeRange(4, 4, 2, hold_s=10.0, max_hold_s=160.0)
    under_test.change_to(4)
    for at in range(40):
        under_test.add_time(EngineStep(4, 8, 4.0, drafted=(4,) * 4, accepted=(1,) * 4), at)
    assert under_test.judge_change(4.0, None, now=5.0)
    assert under_test.is_held(14.0)
    under_test.forget_change()
    assert not under_test.is_held(14.0)
