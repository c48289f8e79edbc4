"""The book's estimates of the engine: its latency, its stalls, and how many requests it takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.outcome import FinishReason, Outcome
from completion_server.requests.scheduling.latency import LatencyEstimates, SizedEstimate, StallDetector
from completion_server.requests.scheduling.limiter import ConcurrencyLimiter
from tests.support.recorded_book import RecordedBook
from tests.unit.requests.scheduling.live_requests import generate, live, stop


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


@pytest.mark.parametrize(("num_ahead", "num_slots"), [(0, 1), (9, 2), (99, 1)])
def test_with_abandoned_requests_the_prediction_solves_the_queues_equation(num_ahead: int, num_slots: int) -> None:
    learnt = latency(0.5, abandoned=1, started=1, waited_s=0.25)
    hazard = learnt.abandon_rate
    expected = integrated_wait_s(num_ahead + 1, num_slots / 0.5, hazard)
    assert learnt.wait_s(num_ahead, num_slots) == pytest.approx(expected, rel=1e-2, abs=1e-4)


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
    estimate = SizedEstimate()
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


CANCELLED = Outcome(FinishReason.CANCELLED)


def serve(estimates: LatencyEstimates, at: float, number: int, *, first_token_s: float = 0.05) -> float:
    """Serve requests one after another; return the time after the last."""
    for _ in range(number):
        estimates.took_slot(at)
        estimates.progressed(at + first_token_s)
        estimates.had_first_token(at, at + first_token_s, 100)
        estimates.progressed(at + 2 * first_token_s)
        estimates.freed_slot(at, at + 2 * first_token_s)
        at += 2 * first_token_s
    return at


def give_up(estimates: LatencyEstimates, since: float, at: float) -> None:
    """Abort work before its first token."""
    estimates.gave_up(since, at, 100)
    estimates.freed_slot(since, at)


def test_a_stall_with_many_requests_in_flight_leaves_the_estimates() -> None:
    estimates = LatencyEstimates()
    at = serve(estimates, 0.0, 50)
    for _ in range(13):
        estimates.took_slot(at)
    for _ in range(13):
        estimates.progressed(at + 30.0)
        estimates.had_first_token(at, at + 30.0, 100)
        estimates.freed_slot(at, at + 30.1)
    assert estimates.first_token_s == pytest.approx(0.05, abs=1e-3)
    assert estimates.held.mean == pytest.approx(0.1, abs=1e-3)
    serve(estimates, at + 31, 100, first_token_s=0.07)
    assert estimates.first_token_s == pytest.approx(0.07, abs=5e-3)  # it goes on learning


def test_what_was_given_up_during_a_stall_is_forgotten_at_the_next_token() -> None:
    estimates = LatencyEstimates()
    at = serve(estimates, 0.0, 50)
    estimates.took_slot(at)
    for number in range(8):
        estimates.took_slot(at + number * 0.5)
        give_up(estimates, at + number * 0.5, at + number * 0.5 + 0.4)
    assert estimates.first_token_s > 0.1, "it can't be told from a slow engine yet"
    assert estimates.progressed(at + 5.0) == pytest.approx(5.0)
    estimates.had_first_token(at, at + 5.0, 100)
    assert estimates.first_token_s == pytest.approx(0.05)
    assert estimates.held.mean == pytest.approx(0.1)


def test_a_suspended_server_that_ends_all_requests_when_it_wakes_up_keeps_its_estimates() -> None:
    book = RecordedBook(num_slots=4, max_queued=10)
    serve(book.latency, 0.0, 50)
    for number in range(3):
        book.submit(live(f"r{number}"), 10.0)
    for number in range(3):
        book.end(f"r{number}", CANCELLED, 40.0)
        stop(book, f"r{number}", CANCELLED, 40.0)
    book.submit(live("next"), 40.01)
    generate(book, "next", "a", 40.06)
    assert book.latency.first_token_s == pytest.approx(0.05, rel=0.01)
    assert book.latency.held.mean == pytest.approx(0.1)


def test_an_engine_that_pauses_again_and_again_is_learnt_however_many_tokens_it_sends_between() -> None:
    estimates = LatencyEstimates()
    at, num_stalls = serve(estimates, 0.0, 50), 0
    for _ in range(50):
        estimates.took_slot(at)
        num_stalls += estimates.progressed(at + 5.0) > 0
        estimates.had_first_token(at, at + 5.0, 100)
        for number in range(1000):
            estimates.progressed(at + 5.0 + number / 1000)
        estimates.freed_slot(at, at + 6.0)
        at += 6.0
    assert num_stalls <= 3
    assert estimates.first_token_s == pytest.approx(5.0, rel=0.2)


def test_an_engine_that_is_too_slow_for_all_users_is_learnt() -> None:
    estimates = LatencyEstimates()
    at = serve(estimates, 0.0, 50)
    for number in range(100):  # one request is in flight at any time
        since = at + number * 2.5
        estimates.took_slot(since)
        estimates.took_slot(since + 2.4)
        give_up(estimates, since, since + 3.0)
        give_up(estimates, since + 2.4, since + 5.4)
    assert estimates.first_token_s == pytest.approx(3.0, rel=0.1)


def test_long_prompts_among_short_ones_are_learnt() -> None:
    estimates, at = LatencyEstimates(), 0.0
    for number in range(1000):
        is_long = number % 50 == 25
        first_token_s, size = (3.0, 8000) if is_long else (0.05, 100)
        estimates.took_slot(at)
        estimates.progressed(at + first_token_s)
        estimates.had_first_token(at, at + first_token_s, size)
        estimates.freed_slot(at, at + first_token_s)
        at += first_token_s
    assert estimates.first_token.at(8000) > 1.0
    assert estimates.first_token.at(100) < 0.2


def test_users_who_type_over_their_requests_are_no_pause_of_the_engine() -> None:
    detector, at = StallDetector(), 0.0
    for _ in range(200):  # each begins before the former one has ended
        detector.began(at + 0.15)
        detector.ended(at, at + 0.2)
        at += 0.15
    detector.progressed(at + 0.1)
    assert detector.longest_s < 0.3


@given(st.lists(st.floats(0.001, 1.9), min_size=1, max_size=60))
def test_pauses_of_less_than_two_seconds_are_never_stalls(pauses: list[float]) -> None:
    detector, at = StallDetector(), 0.0
    detector.began(at)
    for pause_s in pauses:
        at += pause_s
        assert detector.progressed(at) == 0.0
    assert not detector.has_delayed(0.0)


def test_a_stall_is_told_with_its_length_and_delays_only_what_had_begun() -> None:
    detector = StallDetector()
    detector.began(0.0)
    for number in range(20):
        assert detector.progressed(0.1 * number) == 0.0
    assert detector.progressed(31.9) == pytest.approx(30.0)
    assert detector.has_delayed(0.0)
    assert not detector.has_delayed(31.9)


WINDOW = 32


def observe(limiter: ConcurrencyLimiter, step_s: float, num_in_engine: int | None = None, windows: int = 1) -> int:
    """Show the limiter whole windows of equal steps, by default with all slots in use."""
    for _ in range(windows * WINDOW):
        if limiter.observe(step_s):
            limiter.adjust(0.05, limiter.limit if num_in_engine is None else num_in_engine)
    return limiter.limit


def test_the_limit_grows_while_steps_are_fast_and_all_slots_are_in_use() -> None:
    limiter = ConcurrencyLimiter(2, 32, 0.1, 3.0)
    assert observe(limiter, 0.01) > 8
    assert observe(limiter, 0.01, windows=100) == 32


def test_a_limit_below_its_maximum_has_a_reason() -> None:
    limiter = ConcurrencyLimiter(2, 32, 0.1, 3.0)
    assert limiter.reason == "begins low; more are added only while nearly all are in use"
    observe(limiter, 0.01, windows=100)
    assert (limiter.limit, limiter.reason) == (32, "")
    observe(limiter, 0.04, num_in_engine=1)
    assert "steps took more than scheduling.step_tolerance times the shortest" in limiter.reason
    late = ConcurrencyLimiter(2, 32, 0.01, 3.0)
    observe(late, 0.01)
    assert "first tokens took too much of shed.budget_ms" in late.reason
    assert ConcurrencyLimiter(2, 32, 0.1, 0.0).reason == ""


def test_the_limit_shrinks_when_steps_get_slow() -> None:
    limiter = ConcurrencyLimiter(2, 32, 0.1, 3.0)
    observe(limiter, 0.01, windows=100)
    assert observe(limiter, 0.02) == 32  # slower, and still within the tolerance
    assert observe(limiter, 0.04, num_in_engine=1) < 32
    assert observe(limiter, 0.04, windows=100) == 2


def test_one_slow_window_reduces_the_limit_by_at_most_three_tenths() -> None:
    limiter = ConcurrencyLimiter(1, 100, 0.1, 3.0)
    observe(limiter, 0.01, windows=100)
    assert observe(limiter, 60.0) == 70


def test_the_limit_settles_at_the_tolerated_step_time() -> None:
    limiter = ConcurrencyLimiter(2, 64, 0.1, 3.0)
    observe(limiter, 0.01, num_in_engine=1)
    for _ in range(200):
        observe(limiter, 0.01 * (1 + limiter.limit / 8))
    assert 13 <= limiter.limit <= 19  # three times the shortest at 16


def test_the_floor_rises_after_an_engine_became_slower() -> None:
    limiter = ConcurrencyLimiter(2, 32, 0.1, 3.0)
    observe(limiter, 0.01)
    observe(limiter, 0.04, windows=20)
    assert limiter.limit == 2
    assert observe(limiter, 0.04, windows=400) == 32
    assert limiter.floor_s > 0.013


def test_the_floor_never_rises_above_what_is_measured() -> None:
    limiter = ConcurrencyLimiter(2, 32, 0.1, 3.0)
    observe(limiter, 0.01, windows=2000)
    assert limiter.floor_s == pytest.approx(0.01)


def test_the_limit_shrinks_when_first_tokens_get_late_without_any_step() -> None:
    limiter = ConcurrencyLimiter(2, 32, 0.1, 3.0)
    for _ in range(WINDOW):
        if limiter.observe():
            limiter.adjust(0.11, 1)
    assert limiter.limit == 7
    for _ in range(100 * WINDOW):
        if limiter.observe():
            limiter.adjust(0.3, 1)
    assert limiter.limit == 2
    for _ in range(100 * WINDOW):
        if limiter.observe():
            limiter.adjust(0.09, limiter.limit)
    assert limiter.limit == 32


@given(st.integers(1, 20), st.integers(0, 200), st.lists(st.tuples(st.floats(0, 10), st.integers(0, 300)), max_size=40))
def test_the_limit_is_always_within_its_bounds(least: int, more: int, windows: list[tuple[float, int]]) -> None:
    limiter = ConcurrencyLimiter(least, least + more, 0.1, 2.0)
    for step_s, num_in_engine in windows:
        assert least <= observe(limiter, step_s, num_in_engine) <= least + more
        assert limiter.floor_s > 0
