"""The parts of the controller: ranges of batch sizes, times without drafts, estimates."""

import random

import pytest

from completion_server.engine.interface import EngineStep
from completion_server.speculation.batch_sizes import BatchSizeRange, split_batch_sizes
from completion_server.speculation.controller import DraftRest
from completion_server.speculation.estimates import AcceptanceEstimates, StepTimeEstimates


def changed(max_hold_s: float = 160.0) -> BatchSizeRange:
    """Return a range whose operator set K = 2, after changes to 1 and to 4."""
    under_test = BatchSizeRange(4, 4, 2, max_hold_s=max_hold_s)
    under_test.change_to(1)
    under_test.change_to(4)
    return under_test


def take_steps(under_test: BatchSizeRange, seconds: float) -> None:
    for at in range(40):
        under_test.add_time(EngineStep(4, 8, seconds, drafted=(4,) * 4, accepted=(1,) * 4), at)


@pytest.mark.parametrize(("goodput_of_operator", "k"), [(5.0, 2), (3.0, 1), (None, 1)])
def test_a_failed_change_returns_to_the_better_of_two_for_a_while(goodput_of_operator: float | None, k: int) -> None:
    """Those two are the operator's K, 2, and the K before the change, 1."""
    under_test = changed(max_hold_s=15.0)
    for hold_s in (10.0, 15.0, 15.0):
        under_test.change_to(1)
        under_test.change_to(4)
        assert not under_test.judge_change(4.0, goodput_of_operator, now=5.0), "too few steps"
        take_steps(under_test, seconds=4.0)
        assert under_test.judge_change(4.0, goodput_of_operator, now=5.0)
        assert under_test.chosen_k == k
        assert under_test.is_held(4.9 + hold_s)
        assert not under_test.is_held(5.0 + hold_s)


def test_a_change_that_is_no_worse_stays() -> None:
    under_test = changed()
    take_steps(under_test, seconds=2.0)
    assert not under_test.judge_change(4.0, None, now=5.0)
    assert (under_test.chosen_k, under_test.check, under_test.is_held(5.0)) == (4, None, False)


def test_a_change_of_acceptance_ends_the_hold_of_a_failed_change() -> None:
    under_test = changed()
    take_steps(under_test, seconds=4.0)
    assert under_test.judge_change(4.0, None, now=5.0)
    assert under_test.is_held(14.0)
    under_test.forget_change()
    assert not under_test.is_held(14.0)


@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 7, 16, 100])
def test_the_ranges_hold_each_batch_size_once(max_batch_size: int) -> None:
    ranges = split_batch_sizes(max_batch_size, {5})
    assert [size for first, last in ranges for size in range(first, last + 1)] == list(range(1, max_batch_size + 1))
    assert max_batch_size < 5 or 5 in [last for _, last in ranges]


def times_of_change(rest: DraftRest, largest_k: int, until: int, begin: int = 0) -> list[int]:
    return [now for now in range(begin, until) if rest.observe(largest_k, float(now))]


def test_drafts_that_never_pay_are_tried_ever_more_rarely() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 0, 5000) == [60, 660, 720, 1920, 1980, 4380, 4440]
    assert rest.is_off


def test_drafts_that_pay_stay_on() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 2, 5000) == []
    assert times_of_change(rest, 0, 5050, 5000) == []
    assert times_of_change(rest, 1, 9000, 5050) == []


@pytest.mark.parametrize("begin", [0, 100])
def test_a_start_without_drafts_tries_them_after_ten_minutes(begin: int) -> None:
    rest = DraftRest()
    rest.switch_off(float(begin))
    assert times_of_change(rest, 0, begin + 700, begin) == [begin + 600, begin + 660]


def test_drafts_that_paid_again_begin_with_the_short_time() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 0, 2000) == [60, 660, 720, 1920, 1980]
    times_of_change(rest, 3, 5000, 4380)
    assert times_of_change(rest, 0, 6000, 5000)[:2] == [5060, 5660]


def test_acceptance_that_changes_is_seen_within_a_dozen_drafts() -> None:
    rates = AcceptanceEstimates(2)
    assert rates.expected_length(0) == 1
    assert rates.expected_length(1) is None
    for at in range(2000):
        assert not rates.add(EngineStep(10, 26, drafted=(10, 10), accepted=(9, 7)), at / 100)
    assert rates.expected_length(2) == pytest.approx(1 + 0.9 + 0.7, abs=0.01)
    seen = [rates.add(EngineStep(1, 1, drafted=(1, 1), accepted=(int(at == 5), 0)), 20 + at / 100) for at in range(12)]
    assert sum(seen) == 1
    assert rates.expected_length(2) == pytest.approx(1.1, abs=0.15)


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.5, 0.85, 1.0])
def test_chance_is_rarely_taken_for_a_change(acceptance: float) -> None:
    rates, rng, num_seen = AcceptanceEstimates(1), random.Random(2), 0
    for at in range(10_000):
        is_accepted = rng.random() < acceptance
        num_seen += rates.add(EngineStep(1, 1 + is_accepted, drafted=(1,), accepted=(int(is_accepted),)), at / 30)
    assert num_seen <= 5


def test_a_change_that_is_reversed_restores_the_counts_before_it() -> None:
    rates, now = AcceptanceEstimates(1), 0.0
    for at in range(1000):
        now += 0.01
        rates.add(EngineStep(1, 1, drafted=(1,), accepted=(int(at % 10 < 8),)), now)
    for _ in range(2):
        for accepted in [0] * 60 + [1] * 60:
            now += 0.01
            rates.add(EngineStep(1, 1, drafted=(1,), accepted=(accepted,)), now)
        assert rates.expected_length(1) == pytest.approx(1.75, abs=0.05)


def test_positions_without_drafts_have_the_rate_of_the_one_before() -> None:
    rates = AcceptanceEstimates(3)
    for _ in range(10):
        rates.add(EngineStep(10, 15, drafted=(10,), accepted=(5,)), 1.0)
    assert rates.expected_length(3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_times_without_a_measurement_are_on_the_line_of_the_measured_ones() -> None:
    times = StepTimeEstimates()
    assert times.seconds(0) is None
    for k, seconds in ((0, 0.005), (1, 0.010), (3, 0.020)):
        for at in range(3):
            times.add(k, seconds, at)
    assert [times.seconds(k) for k in range(5)] == pytest.approx([0.005, 0.010, 0.015, 0.020, 0.025])
    assert times.age_s(3, 5.0) == 3.0
    assert times.age_s(4, 5.0) == float("inf")
