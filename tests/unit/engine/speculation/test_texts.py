"""Gains without the differences of the texts."""

import math
import random

import pytest

from completion_server.engine.speculation.comparison import ALPHA, compare
from completion_server.engine.speculation.texts import Typed, TypedRound, log_gains, text_errors, tokens_per_s

NUM_TRIALS = 100
NUM_ROUNDS = {1: 28, 4: 14, 16: 7}


def typed_round(
    chance: random.Random, size: int, share: float = 0.3, step_s: float = 0.011, slower: float = 1.0, noise: float = 0.0
) -> TypedRound:
    """Return texts of which a share takes a third of the steps with K = 2."""
    texts = [(tokens := chance.randint(3, 24), tokens // 3 if chance.random() < share else tokens) for _ in range(size)]
    off, on = (math.exp(chance.gauss(0, noise)) for _ in range(2))
    return {
        0: [Typed(tokens, tokens, off * (0.02 + 0.01 * tokens)) for tokens, _ in texts],
        2: [Typed(tokens, steps, on * slower * (0.02 + step_s * steps)) for tokens, steps in texts],
    }


def test_rounds_of_different_texts_have_the_same_gain() -> None:
    chance = random.Random(1)
    rounds = {size: [typed_round(chance, size) for _ in range(20)] for size in (1, 16)}
    plain = [math.log(tokens_per_s(1, each[2]) / tokens_per_s(1, each[0])) for each in rounds[1]]
    found = log_gains(rounds, (2, 4))
    off, on = (sum(each.seconds for own in rounds.values() for made in own for each in made[k]) for k in (0, 2))
    assert max(plain) - min(plain) > 0.5
    assert found[1][2] == pytest.approx([math.log(off / on)] * 20, abs=0.02)
    assert found[16][2] == pytest.approx([math.log(off / on)] * 20, abs=0.02)
    assert found[1][4] == []


def test_a_round_that_took_longer_shows_that() -> None:
    chance = random.Random(2)
    rounds = {4: [typed_round(chance, 4) for _ in range(9)] + [typed_round(chance, 4, slower=2.0)]}
    *calm, disturbed = log_gains(rounds, (2,))[4][2]
    assert disturbed == pytest.approx(sum(calm) / 9 - math.log(2), abs=0.1)


@pytest.mark.parametrize(("gain", "low", "high"), [(1.0, 0.0, ALPHA + 0.06), (1.25, 0.95, 1.0)])
def test_the_texts_of_a_trial_rarely_decide(gain: float, low: float, high: float) -> None:
    """Few texts give all of the gain, which is known over all texts. The bound has two binomial errors."""
    share = 0.15
    steps = (1 - share) * 13.5 + share * sum(each // 3 for each in range(3, 25)) / 22
    step_s = ((0.02 + 0.01 * 13.5) / gain - 0.02) / steps
    num_on = 0
    for seed in range(NUM_TRIALS):
        chance = random.Random(seed)
        rounds = {
            size: [typed_round(chance, size, share, step_s, noise=0.02) for _ in range(num)]
            for size, num in NUM_ROUNDS.items()
        }
        gains, errors = log_gains(rounds, (2,)), text_errors(rounds, (2,))
        num_on += sum(bool(compare(gains[size], shared_errors=errors[size]).k) for size in rounds)
    assert low <= num_on / NUM_TRIALS / len(NUM_ROUNDS) <= high
