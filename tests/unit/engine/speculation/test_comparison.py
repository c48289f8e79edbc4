"""The test that decides whether drafts pay, on simulated rounds: its error rates, its estimate, its schedule."""

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from completion_server.engine.speculation.comparison import (
    ALPHA,
    BETA,
    LAST_SHARE,
    Comparison,
    compare,
    rows_of,
    share_after,
)

NUM_TRIALS = 200
MAX_ROUNDS = 80


def rounds(chance: random.Random, gains: Mapping[int, float], noise: float) -> dict[int, float]:
    """Return a round's log gains: lognormal noise of each block, and one block in 20 that takes twice as long."""

    def block() -> float:
        return chance.gauss(0, noise) - (math.log(2) if chance.random() < 0.05 else 0.0)

    off = block()
    return {k: math.log(gain) + block() - off for k, gain in gains.items()}


def decide(gains: Mapping[int, float], noise: float, seed: int, max_rounds: int = MAX_ROUNDS) -> Comparison:
    """Run the test as a trial does, look by look."""
    chance, found = random.Random(seed), {k: list[float]() for k in gains}
    for number in range(1, max_rounds + 1):
        for k, value in rounds(chance, gains, noise).items():
            found[k].append(value)
        share = share_after(number)
        if share is not None and number < max_rounds:
            result = compare(found, share, is_last=False)
            if result.k is not None:
                return result
    return compare(found, LAST_SHARE)


def share_on(gains: Mapping[int, float], noise: float, max_rounds: int = MAX_ROUNDS) -> float:
    return sum(bool(decide(gains, noise, seed, max_rounds).k) for seed in range(NUM_TRIALS)) / NUM_TRIALS


@pytest.mark.parametrize(("gain", "noise", "max_rounds"), [(0.9, 0.06, 8), (1.0, 0.02, 40), (1.0, 0.06, 8)])
def test_drafts_that_gain_nothing_are_rarely_on(gain: float, noise: float, max_rounds: int) -> None:
    assert share_on(dict.fromkeys((1, 2, 4), gain), noise, max_rounds) <= ALPHA


@pytest.mark.parametrize(("gain", "noise"), [(1.05, 0.02), (1.05, 0.06), (1.4, 0.06)])
def test_drafts_that_gain_5_percent_are_rarely_off(gain: float, noise: float) -> None:
    assert share_on({2: gain, 4: 1.0}, noise) >= 1 - BETA


def test_the_best_k_is_chosen_unless_another_is_within_3_percent() -> None:
    for seed in range(50):
        assert decide({1: 1.10, 2: 1.40, 4: 1.20}, 0.05, seed).k == 2


def test_of_ks_that_do_not_differ_the_smallest_is_chosen() -> None:
    same = [0.2, 0.21, 0.19, 0.2, 0.2, 0.21, 0.2]
    assert compare({1: same, 2: [each + 0.002 for each in same], 4: same}).k == 1


def test_a_round_that_was_disturbed_does_not_decide() -> None:
    calm = [0.0, 0.01, -0.01, 0.005, -0.005, 0.0, 0.01, -0.01, 0.0]
    found = compare({2: [*calm, math.log(4), math.log(3)]})
    assert found.k == 0
    assert found.gains[2].value == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.5]])
def test_too_few_rounds_show_nothing(values: Sequence[float]) -> None:
    assert compare({2: values}) == Comparison(0, 0, {}, frozenset())
    assert compare({2: values}, is_last=False).k is None


def test_the_looks_before_the_last_spend_no_more_than_what_it_leaves() -> None:
    shares = {number: share for number in range(1000) if (share := share_after(number))}
    assert list(shares)[:6] == [5, 7, 10, 14, 20, 28]
    assert sum(shares.values()) + LAST_SHARE <= 1


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [
        ({1: 4, 4: 2, 16: 0}, ((1, 2, 4), (3, 8, 2), (9, 64, 0))),
        ({1: 0, 4: 0, 16: 0}, ((1, 64, 0),)),
        ({1: 2, 2: 1, 3: 0}, ((1, 1, 2), (2, 2, 1), (3, 64, 0))),
    ],
)
def test_a_batch_size_gets_the_k_of_the_nearest_measured_one(
    chosen: dict[int, int], rows: tuple[tuple[int, int, int], ...]
) -> None:
    assert rows_of(chosen, 64) == rows
