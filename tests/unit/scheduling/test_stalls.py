"""An engine that stood still is not taken for a slow one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.outcome import FinishReason, Outcome
from completion_server.scheduling.book import Book
from completion_server.scheduling.latency import LatencyEstimates
from completion_server.scheduling.stalls import StallDetector
from tests.unit.scheduling.queue_entries import entry

STOPPED = Outcome(FinishReason.STOP)
CANCELLED = Outcome(FinishReason.CANCELLED)


def serve(estimates: LatencyEstimates, at: float, number: int, *, first_token_s: float = 0.05) -> float:
    """Serve requests one after another; return the time after the last."""
    for _ in range(number):
        estimates.took_slot(at, is_alone=True)
        estimates.had_first_token(at, at + first_token_s, 100)
        estimates.freed_slot(at, at + 2 * first_token_s, was_aborted=False)
        at += 2 * first_token_s
    return at


def test_a_stall_with_many_requests_in_flight_leaves_the_estimates() -> None:
    estimates = LatencyEstimates()
    at = serve(estimates, 0.0, 50)
    for _ in range(13):
        estimates.took_slot(at, is_alone=_ == 0)
    for _ in range(13):
        estimates.had_first_token(at, at + 30.0, 100)
        estimates.freed_slot(at, at + 30.1, was_aborted=False)
    assert estimates.first_token_s == pytest.approx(0.05, abs=1e-3)
    assert estimates.held.mean == pytest.approx(0.1, abs=1e-3)
    serve(estimates, at + 31, 100, first_token_s=0.07)
    assert estimates.first_token_s == pytest.approx(0.07, abs=5e-3)  # it goes on learning


def test_requests_that_are_given_up_during_a_stall_are_no_samples() -> None:
    book = Book(num_slots=4, max_queued=10)
    for number in range(20):
        at = number * 0.2
        book.submit(entry(f"r{number}"), at)
        book.first_token(f"r{number}", at + 0.05)
        book.work_done(f"r{number}", STOPPED, at + 0.1)
    book.submit(entry("late"), 5.0)
    book.end("late", CANCELLED, 35.0)
    book.work_done("late", CANCELLED, 35.0)
    assert book.latency.first_token.mean == pytest.approx(0.05)
    assert book.latency.held.mean == pytest.approx(0.1)


def test_an_engine_that_has_become_slow_for_good_is_learnt() -> None:
    estimates = LatencyEstimates()
    at = serve(estimates, 0.0, 50)
    serve(estimates, at, 60, first_token_s=10.0)
    assert estimates.first_token_s == pytest.approx(10.0, rel=0.2)


def test_a_slow_engine_is_learnt_from_its_first_request_on() -> None:
    estimates = LatencyEstimates()
    serve(estimates, 0.0, 3, first_token_s=20.0)
    assert estimates.first_token_s == pytest.approx(20.0)


def test_idle_time_is_no_stall() -> None:
    estimates = LatencyEstimates()
    at = serve(estimates, 0.0, 50)
    serve(estimates, at + 3600, 1, first_token_s=0.5)
    assert estimates.first_token.mean > 0.06


@given(st.lists(st.floats(0.001, 1.9), min_size=1, max_size=60))
def test_pauses_of_less_than_two_seconds_are_never_stalls(pauses: list[float]) -> None:
    detector, at = StallDetector(), 0.0
    detector.began(at)
    for pause_s in pauses:
        at += pause_s
        detector.progressed(at)
        assert not detector.has_stalled(0.0, at + 1.9)
