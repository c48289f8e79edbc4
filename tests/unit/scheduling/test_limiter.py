import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.scheduling.limiter import ConcurrencyLimiter

WINDOW = 32


def observe(limiter: ConcurrencyLimiter, step_s: float, num_in_engine: int | None = None, windows: int = 1) -> int:
    """Show the limiter whole windows of equal steps, by default with all slots in use."""
    for _ in range(windows * WINDOW):
        limiter.observe(0.05, limiter.limit if num_in_engine is None else num_in_engine, step_s)
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
        limiter.observe(0.11, 1)
    assert limiter.limit == 7
    for _ in range(100 * WINDOW):
        limiter.observe(0.3, 1)
    assert limiter.limit == 2
    for _ in range(100 * WINDOW):
        limiter.observe(0.09, limiter.limit)
    assert limiter.limit == 32


@given(st.integers(1, 20), st.integers(0, 200), st.lists(st.tuples(st.floats(0, 10), st.integers(0, 300)), max_size=40))
def test_the_limit_is_always_within_its_bounds(least: int, more: int, windows: list[tuple[float, int]]) -> None:
    limiter = ConcurrencyLimiter(least, least + more, 0.1, 2.0)
    for step_s, num_in_engine in windows:
        assert least <= observe(limiter, step_s, num_in_engine) <= least + more
        assert limiter.floor_s > 0
