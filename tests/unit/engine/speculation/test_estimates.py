"""The estimates of acceptance, step times and goodput."""

import math
import random

import pytest

from completion_server.engine.interface import EngineStep
from completion_server.engine.speculation.estimates import (
    AcceptanceEstimates,
    Estimates,
    StepTimeEstimates,
    split_batch_sizes,
)


@pytest.mark.parametrize("max_batch_size", [1, 7, 100])
def test_the_ranges_hold_each_batch_size_once(max_batch_size: int) -> None:
    ranges = split_batch_sizes(max_batch_size, {5})
    assert [size for first, last in ranges for size in range(first, last + 1)] == list(range(1, max_batch_size + 1))
    assert max_batch_size < 5 or 5 in [last for _, last in ranges]


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


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.85, 1.0])
def test_chance_is_rarely_taken_for_a_change(acceptance: float) -> None:
    rates, rng, num_seen = AcceptanceEstimates(1), random.Random(2), 0
    for at in range(3000):
        is_accepted = rng.random() < acceptance
        num_seen += rates.add(EngineStep(1, 1 + is_accepted, drafted=(1,), accepted=(int(is_accepted),)), at / 30)
    assert num_seen <= 3


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


def test_the_gain_that_a_trial_measured_corrects_the_one_that_its_steps_predict() -> None:
    estimates = Estimates(4, 16)
    for step in (EngineStep(4, 4, 0.010), EngineStep(4, 8, 0.016, drafted=(4, 4), accepted=(3, 1))):
        for _ in range(8):
            estimates.add(step, 1.0)

    def gain(batch_size: int, k: int) -> float:
        with_k, off = estimates.goodput(batch_size, k), estimates.goodput(batch_size, 0)
        assert with_k is not None
        assert off is not None
        return with_k / off

    assert gain(4, 2) == pytest.approx((1 + 4 / 4) * 0.010 / 0.016)
    before = gain(4, 1)
    estimates.calibrate({4: {2: math.log(1.1)}})
    assert gain(4, 2) == pytest.approx(1.1)
    assert gain(16, 2) == pytest.approx(1.1), "there were no steps of that size"
    assert gain(4, 1) == pytest.approx(before * math.sqrt(1.1 / 1.25)), "between the measured Ks"
