"""Stamps rise on each replica, and follow Redis's clock on all of them."""

from hypothesis import given
from hypothesis import strategies as st

from completion_server.state.redis_clock import StampClock

US = 1_000_000


def test_stamps_rise_without_redis() -> None:
    clock = StampClock()
    assert [clock.next(5.0), clock.next(5.0), clock.next(4.0)] == [1, 2, 3]


def test_a_stamp_is_the_time_on_redis_clock() -> None:
    clock = StampClock()
    clock.measure(1000 * US, sent_at=1.0, received_at=1.2)
    assert clock.next(3.1) == 1002 * US
    assert clock.error_s(1.2) == (1.2 - 1.0) / 2


def test_a_quicker_answer_measures_better_and_a_slow_one_is_ignored() -> None:
    clock = StampClock()
    clock.measure(1000 * US, sent_at=0.0, received_at=0.4)  # 1000 s at 0.2 s
    clock.measure(1001 * US - 50_000, sent_at=1.1, received_at=1.2)
    assert clock.time_us(1.15) == 1001 * US - 50_000
    clock.measure(1002 * US + 100_000, sent_at=2.0, received_at=2.6)
    assert clock.time_us(2.15) == 1002 * US - 50_000


def test_a_clock_that_jumps_ahead_is_followed_also_by_a_slow_answer() -> None:
    clock = StampClock()
    clock.measure(1000 * US, sent_at=0.0, received_at=0.0)
    clock.measure(5000 * US, sent_at=1.0, received_at=1.5)
    assert clock.next(1.25) == 5000 * US


def test_a_clock_that_went_back_is_ignored() -> None:
    """The other replicas have the time of the earlier clock, too."""
    clock = StampClock()
    clock.measure(1000 * US, sent_at=0.0, received_at=0.0)
    clock.measure(10 * US, sent_at=2000.0, received_at=2000.0)
    assert clock.next(2001.0) == 3001 * US


def test_the_error_grows_until_the_next_measurement() -> None:
    clock = StampClock()
    assert clock.error_s(5.0) == float("inf")
    clock.measure(1000 * US, sent_at=0.0, received_at=0.02)
    assert 0.01 < clock.error_s(1.0) < clock.error_s(100.0)


def test_another_replicas_stamp_is_older_than_the_next_own() -> None:
    clock = StampClock()
    clock.advance(70)
    assert clock.next(0.0) == 71
    clock.advance(5)
    assert clock.next(0.0) == 72


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0.01, 10))
def test_two_replicas_agree_on_the_order_beyond_their_errors(
    boot_a: float, boot_b: float, way_there_s: float, way_back_s: float, gap_s: float
) -> None:
    """Two processes with unrelated clocks, whose answers from Redis take different times on each way."""
    a, b, redis_s = StampClock(), StampClock(), 1_700_000_000.0
    a.measure(int(redis_s * US), boot_a, boot_a + 0.001)
    b.measure(int(redis_s * US), boot_b - way_there_s, boot_b + way_back_s)
    first = a.next(boot_a + 0.0005 + 1.0)  # 1 s after Redis answered
    second = b.next(boot_b + 1.0 + gap_s)
    if gap_s > a.error_s(boot_a + 1) + b.error_s(boot_b + 1) + 1e-5:
        assert first < second
