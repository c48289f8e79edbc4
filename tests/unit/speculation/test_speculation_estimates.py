"""Estimates of acceptance and of step times."""

import random

import pytest

from completion_server.engine.interface import EngineStep
from completion_server.speculation.acceptance import AcceptanceEstimates
from completion_server.speculation.step_times import StepTimeEstimates


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
