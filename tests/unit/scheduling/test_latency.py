import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.scheduling.latency import LatencyEstimates, MovingMean, SizedEstimate


def latency(held_s: float, *, abandoned: int = 0, started: int = 0, waited_s: float = 0.0) -> LatencyEstimates:
    """Return estimates from the given times of held slots and of waiting requests that were abandoned or started."""
    learnt = LatencyEstimates()
    learnt.held.add(held_s)
    for _ in range(abandoned):
        learnt.left_queue(waited_s, abandoned=True)
    for _ in range(started):
        learnt.left_queue(waited_s, abandoned=False)
    return learnt


def integrated_wait_s(num: int, rate: float, hazard: float) -> float:
    """Solve dn/dt = -(rate + hazard n) in small steps."""
    left, seconds, step = float(num), 0.0, 1e-5
    while left > 0:
        left -= step * (rate + hazard * left)
        seconds += step
    return seconds


def test_predictions_are_zero_before_the_first_sample() -> None:
    assert LatencyEstimates().wait_s(num_ahead=1000, num_slots=1) == 0.0
    assert LatencyEstimates().first_token_s == 0.0


def test_abandoned_requests_give_no_prediction_before_a_slot_was_held() -> None:
    learnt = LatencyEstimates()
    learnt.left_queue(1.0, abandoned=True)
    assert learnt.wait_s(num_ahead=1000, num_slots=1) == 0.0


def test_without_abandoned_requests_the_queue_moves_as_slots_become_free() -> None:
    learnt = latency(0.5, started=10, waited_s=1.0)
    assert learnt.wait_s(num_ahead=0, num_slots=1) == pytest.approx(0.5)
    assert learnt.wait_s(num_ahead=9, num_slots=1) == pytest.approx(5.0)
    assert learnt.wait_s(num_ahead=9, num_slots=10) == pytest.approx(0.5)


@pytest.mark.parametrize(("num_ahead", "num_slots"), [(0, 1), (9, 2), (99, 1)])
def test_with_abandoned_requests_the_prediction_solves_the_queues_equation(num_ahead: int, num_slots: int) -> None:
    learnt = latency(0.5, abandoned=1, started=1, waited_s=0.25)
    hazard = learnt.abandon_rate
    expected = integrated_wait_s(num_ahead + 1, num_slots / 0.5, hazard)
    assert learnt.wait_s(num_ahead, num_slots) == pytest.approx(expected, rel=1e-2, abs=1e-4)


def test_a_long_queue_of_abandoned_requests_shrinks_fast() -> None:
    learnt = latency(0.1, abandoned=50, waited_s=0.2)  # each lasts 0.2 s
    assert learnt.wait_s(num_ahead=999, num_slots=1) == pytest.approx(math.log1p(5 * 1000 / 10) / 5)
    assert learnt.wait_s(num_ahead=999, num_slots=1) < 1.5  # 100 s without


@given(
    st.floats(1e-3, 10), st.integers(0, 50), st.integers(0, 50), st.just(0.0) | st.floats(1e-6, 10),
    st.integers(0, 2000), st.integers(1, 256),
)  # fmt: skip
def test_a_wait_grows_with_the_queue_and_shrinks_with_slots_and_abandonment(
    held_s: float, abandoned: int, started: int, waited_s: float, num_ahead: int, num_slots: int
) -> None:
    learnt = latency(held_s, abandoned=abandoned, started=started, waited_s=waited_s)
    wait_s = learnt.wait_s(num_ahead, num_slots)
    assert 0 < wait_s <= (num_ahead + 1) * held_s / num_slots * (1 + 1e-9)
    assert wait_s <= learnt.wait_s(num_ahead + 1, num_slots)
    assert learnt.wait_s(num_ahead, num_slots + 1) <= wait_s


def test_an_estimate_starts_with_its_first_sample_and_follows_slowly() -> None:
    estimate = MovingMean()
    estimate.add(2.0)
    assert (estimate.mean, estimate.deviation) == (2.0, 0.0)
    estimate.add(4.0)
    assert (estimate.mean, estimate.deviation) == (3.0, 1.0)
    for _ in range(200):
        estimate.add(10.0)
    assert estimate.mean == pytest.approx(10.0, abs=1e-2)
    before = estimate.mean
    estimate.add(0.0)
    assert before - estimate.mean == pytest.approx(0.05 * before)


def test_a_first_token_is_allowed_more_than_the_mean_where_it_varies() -> None:
    steady, varying = LatencyEstimates(), LatencyEstimates()
    for number in range(100):
        steady.first_token.add(0.1)
        varying.first_token.add(0.05 if number % 2 else 0.15)
    assert steady.first_token_s == pytest.approx(0.1)
    assert varying.first_token_s == pytest.approx(0.15, abs=0.01)


def test_long_prompts_of_some_do_not_make_short_ones_look_slow() -> None:
    learnt = LatencyEstimates()
    for number in range(200):
        size = 1000 if number % 2 else 30
        learnt.first_token.add(0.005 + 1e-4 * size, size)
    assert learnt.first_token_after(30) == pytest.approx(0.008, abs=0.003)
    assert learnt.first_token_after(1000) == pytest.approx(0.105, rel=0.05)


def test_first_token_s_is_the_estimate_for_a_prompt_of_median_size() -> None:
    learnt = LatencyEstimates()
    for number in range(300):
        size = 1000 if number % 3 == 0 else 40
        learnt.first_token.add(0.005 + 1e-4 * size, size)
    assert learnt.first_token_s == pytest.approx(0.009, abs=0.004)
    assert learnt.first_token.mean > 0.03


def test_noise_of_prompts_of_one_size_is_no_slope() -> None:
    learnt = LatencyEstimates()
    for number in range(200):
        learnt.first_token.add(0.1 if number % 2 else 0.2, 30 + number % 2)
    assert learnt.first_token_after(2000) == pytest.approx(learnt.first_token_after(30), rel=0.2)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 4000)), max_size=50), st.integers(0, 4000))
def test_an_estimate_is_never_negative_and_never_less_for_a_larger_size(
    samples: list[tuple[float, int]], size: int
) -> None:
    estimate = SizedEstimate()
    for value, sample_size in samples:
        estimate.add(value, sample_size)
    assert 0 <= estimate.at(size) <= estimate.at(size + 100)
    assert estimate.deviation >= 0


@given(st.lists(st.floats(0, 10), max_size=50))
def test_an_estimate_without_sizes_is_a_moving_mean(values: list[float]) -> None:
    sized, plain = SizedEstimate(), MovingMean()
    for value in values:
        sized.add(value)
        plain.add(value)
    assert (sized.at(0), sized.deviation) == pytest.approx((plain.mean, plain.deviation))
