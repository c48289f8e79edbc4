"""The search for a capacity on virtual servers."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.search import Capacity, SearchSettings, Trial, find_capacity


def search(
    capacity: int, *, start: int = 100, end: int = 20_000, tolerance: float = 0.05, repeats: int = 3
) -> Capacity:
    """Search on a server that passes up to its capacity."""
    settings = SearchSettings(start, end, tolerance, repeats)
    return find_capacity(settings, lambda sessions, _repeat: Trial(sessions, sessions <= capacity))


@given(st.integers(1, 19_999), st.integers(1, 5_000), st.sampled_from([0.01, 0.05, 0.3]), st.sampled_from([1, 3, 5]))
def test_a_capacity_is_found_within_the_tolerance(capacity: int, start: int, tolerance: float, repeats: int) -> None:
    found = search(capacity, start=start, tolerance=tolerance, repeats=repeats)
    assert found.fails_at is not None
    assert found.sessions <= capacity < found.fails_at <= 20_000
    assert found.fails_at - found.sessions <= max(1, tolerance * found.sessions)
    assert set(Counter(each.sessions for each in found.trials).values()) == {repeats // 2 + 1}


def test_growth_then_halving_within_the_range() -> None:
    found = search(1000, tolerance=0.2, repeats=1)
    assert [each.sessions for each in found.trials] == [100, 200, 400, 800, 1600, 1200, 1000]
    assert (found.sessions, found.fails_at) == (1000, 1200)
    found = search(10**9, start=100, end=500)
    assert (found.sessions, found.fails_at, max(each.sessions for each in found.trials)) == (500, None, 500)
    found = search(0, start=64)
    assert (found.sessions, found.fails_at) == (0, 1), "a server that serves no session"


def test_noise_moves_the_answer_little() -> None:
    """Each run's own capacity is drawn around 1,000; most of five runs decide."""
    chance = random.Random(4)
    settings = SearchSettings(100, 20_000, 0.05, 5)
    answers = [
        find_capacity(settings, lambda sessions, _repeat: Trial(sessions, sessions <= chance.gauss(1000, 60))).sessions
        for _ in range(40)
    ]
    assert all(800 < each < 1150 for each in answers)
    assert sum(900 <= each <= 1080 for each in answers) >= 34


def test_one_unlucky_run_moves_no_bound_and_repeats_are_numbered() -> None:
    asked: list[tuple[int, int]] = []

    def run_once(sessions: int, repeat: int) -> Trial:
        asked.append((sessions, repeat))
        return Trial(sessions, sessions <= 1000 and (sessions, repeat) != (400, 1))

    found = find_capacity(SearchSettings(100, 20_000, 0.05, 3), run_once)
    assert 950 <= found.sessions <= 1000
    assert [each.is_passed for each in found.trials if each.sessions == 400] == [True, False, True]
    assert asked[:7] == [(100, 0), (100, 1), (200, 0), (200, 1), (400, 0), (400, 1), (400, 2)]


@pytest.mark.parametrize("is_late", [True, False])
def test_an_overloaded_generator_is_named(is_late: bool) -> None:
    def run_once(sessions: int, _repeat: int) -> Trial:
        reasons = ("the generator was late",) if is_late and sessions > 300 else ()
        return Trial(sessions, sessions <= 300, invalid_because=reasons)

    assert find_capacity(SearchSettings(100, 1000, 0.05, 3), run_once).is_generator_bound is is_late


def test_an_interrupted_run_ends_the_search_and_does_not_count() -> None:
    found = find_capacity(
        SearchSettings(100, 1000, 0.05, 3), lambda sessions, _: Trial(sessions, sessions < 400, {}, (), sessions == 400)
    )
    assert (found.is_interrupted, found.sessions) == (True, 200)
    assert [each.sessions for each in found.trials] == [100, 100, 200, 200]
