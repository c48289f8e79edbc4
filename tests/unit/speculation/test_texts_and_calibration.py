"""Gains without the differences of the texts, and the corrections of the controller's predictions."""

import math
import random

import pytest

from completion_server.engine.interface import EngineStep
from completion_server.speculation.calibration import Calibration, Corrections
from completion_server.speculation.comparison import ALPHA, compare
from completion_server.speculation.texts import Typed, TypedRound, log_gains, text_errors, tokens_per_s


def typed_round(chance: random.Random, size: int, slower: float = 1.0) -> TypedRound:
    """Return texts of which a few take a third of the steps with K = 2; a step takes a tenth more with it."""
    texts = [(tokens := chance.randint(3, 24), tokens // 3 if chance.random() < 0.3 else tokens) for _ in range(size)]
    return {
        0: [Typed(tokens, tokens, 0.02 + 0.01 * tokens) for tokens, _ in texts],
        2: [Typed(tokens, steps, slower * (0.02 + 0.011 * steps)) for tokens, steps in texts],
    }


def test_rounds_of_different_texts_have_the_same_gain() -> None:
    chance = random.Random(1)
    rounds = {size: [typed_round(chance, size) for _ in range(20)] for size in (1, 16)}
    plain = [math.log(tokens_per_s(1, each[2]) / tokens_per_s(1, each[0])) for each in rounds[1]]
    found = log_gains(rounds, (2, 4))
    total = sum(each.seconds for own in rounds.values() for made in own for each in made[0])
    total /= sum(each.seconds for own in rounds.values() for made in own for each in made[2])
    assert max(plain) - min(plain) > 0.5
    assert found[1][2] == pytest.approx([math.log(total)] * 20, abs=0.02)
    assert found[16][2] == pytest.approx([math.log(total)] * 20, abs=0.02)
    assert found[1][4] == []


def test_a_round_that_took_longer_shows_that() -> None:
    chance = random.Random(2)
    rounds = {4: [typed_round(chance, 4) for _ in range(9)] + [typed_round(chance, 4, slower=2.0)]}
    *calm, disturbed = log_gains(rounds, (2,))[4][2]
    assert disturbed == pytest.approx(sum(calm) / 9 - math.log(2), abs=0.1)


NUM_TRIALS = 200
NUM_ROUNDS = {1: 28, 4: 14, 16: 7}


def share_on(gain: float) -> float:
    """Return how many size-trials choose drafts if few texts give all of the gain, which is known over all texts."""
    shorter = 0.15
    # E[tokens] = 13.5, of which the predictable share keeps a third.
    mean_off = 0.02 + 0.01 * 13.5
    steps = (1 - shorter) * 13.5 + shorter * sum(each // 3 for each in range(3, 25)) / 22
    step_s = (mean_off / gain - 0.02) / steps
    num_on = 0
    for seed in range(NUM_TRIALS):
        chance, rounds = random.Random(seed), dict[int, list[TypedRound]]()
        for size, num in NUM_ROUNDS.items():
            rounds[size] = []
            for _ in range(num):
                texts = [
                    (tokens := chance.randint(3, 24), tokens // 3 if chance.random() < shorter else tokens)
                    for _ in range(size)
                ]
                off, on = (math.exp(chance.gauss(0, 0.02)) for _ in range(2))
                rounds[size].append(
                    {
                        0: [Typed(tokens, tokens, off * (0.02 + 0.01 * tokens)) for tokens, _ in texts],
                        2: [Typed(tokens, steps, on * (0.02 + step_s * steps)) for tokens, steps in texts],
                    }
                )
        gains, errors = log_gains(rounds, (2,)), text_errors(rounds, (2,))
        num_on += sum(bool(compare(gains[size], shared_errors=errors[size]).k) for size in rounds)
    return num_on / NUM_TRIALS / len(NUM_ROUNDS)


def test_the_texts_of_a_trial_rarely_decide() -> None:
    """The batch sizes share their texts, so a trial counts once in the binomial error."""
    assert share_on(1.0) <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / NUM_TRIALS)
    assert share_on(1.25) >= 0.95


def test_the_correction_is_the_measured_gain_over_the_predicted_one() -> None:
    calibration = Calibration()
    for _ in range(8):
        calibration.add(EngineStep(4, 4, 0.010))
    for _ in range(8):
        calibration.add(EngineStep(4, 8, 0.016, drafted=(4, 4), accepted=(3, 1)))
    found = calibration.corrections({4: {2: math.log(1.1)}, 16: {2: math.log(1.1)}})
    predicted = (1 + 4 / 4) * 0.010 / 0.016
    assert found.factor(3, 2) == pytest.approx(1.1 / predicted)
    assert found.factor(16, 4) == found.factor(3, 2), "there were no steps of that size, and no larger K"
    assert found.factor(3, 1) == pytest.approx(math.sqrt(1.1 / predicted))
    assert found.factor(3, 0) == 1.0
    assert found.times_at(64).seconds(2) == pytest.approx(0.004)


def test_without_a_trial_nothing_is_corrected() -> None:
    assert Corrections().factor(4, 2) == 1.0
    assert not Corrections().times_at(4).can_compare
