"""Token buckets of one process."""

from collections.abc import Hashable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from completion_server.admission.keyed_sessions import KeyedSessions
from completion_server.admission.rate_limiter import ROUNDING, RateLimiter
from completion_server.core.errors import Limit


def take(limiter: RateLimiter, key: Hashable, now: float) -> float:
    """Take one unit and return 0, or take none and return the seconds after which the key may have one."""
    delay_s = limiter.delay_s(key, now)
    if not delay_s:
        limiter.charge(key, now)
    return delay_s


def allowed(limiter: RateLimiter, key: str, now: float, num: int) -> int:
    """Return how many of `num` requests at one moment are let through."""
    return sum(take(limiter, key, now) == 0 for _ in range(num))


def test_after_a_burst_requests_pass_at_the_rate() -> None:
    limiter = RateLimiter(2.0, 5)
    allowed(limiter, "u", 100.0, 5)
    assert take(limiter, "u", 100.0) == pytest.approx(0.5)
    assert take(limiter, "u", 100.25) == pytest.approx(0.25)
    assert [allowed(limiter, "u", 100.5 + 0.5 * i, 3) for i in range(4)] == [1, 1, 1, 1]


def test_keys_do_not_share_a_bucket() -> None:
    limiter = RateLimiter(2.0, 5)
    assert allowed(limiter, "abuser", 100.0, 10_000) == 5
    assert allowed(limiter, "other", 100.0, 5) == 5


def test_keys_whose_bucket_is_full_again_are_forgotten() -> None:
    limiter = RateLimiter(1.0, 2)
    for number in range(20_000):
        assert take(limiter, number, float(number)) == 0
    assert limiter.num_known < 5000
    assert take(limiter, 19_999, 19_999.0) == 0
    assert take(limiter, 19_999, 19_999.0) == pytest.approx(1.0)  # it was not forgotten too soon


@given(st.floats(0.1, 1000), st.integers(1, 500), st.floats(0, 1e6))
def test_a_burst_is_exact_at_any_rate_and_time(requests_per_s: float, burst: int, now: float) -> None:
    limiter = RateLimiter(requests_per_s, burst)
    assert allowed(limiter, "u", now, burst + 1) == burst


@given(st.floats(0.5, 50), st.integers(1, 20), st.lists(st.floats(0, 2), min_size=1, max_size=200))
@example(0.99999, 1, [0.0, 1.0, 0.0])  # The second passes a little early, so the third waits that much longer.
def test_over_any_time_no_more_pass_than_the_burst_and_the_rate_allow(
    requests_per_s: float, burst: int, gaps: list[float]
) -> None:
    limiter = RateLimiter(requests_per_s, burst)
    now, passed = 1000.0, 0
    for gap in gaps:
        now += gap
        wait_s = take(limiter, "u", now)
        passed += wait_s == 0
        assert 0 <= wait_s <= 1 / requests_per_s * (1 + ROUNDING + 1e-6)
    assert passed <= burst + requests_per_s * (now - 1000.0) + 1e-3


def test_keys_without_open_sessions_are_forgotten() -> None:
    sessions = KeyedSessions(Limit("sessions", 2))
    for number in range(100):
        sessions.enter(f"u{number}")
        sessions.leave(f"u{number}")
    assert len(sessions) == 0
