"""Simulated editors: the same for one seed, debounced, and as busy as they say."""

import itertools

import pytest

from loadtest.simulation.workload import EditorModel, requests_of, requests_of_all
from loadtest.traffic.typist import LogNormal, TypingModel

FAST = EditorModel(TypingModel(key_gap=LogNormal(0.060, 0.5), keys_per_burst=5.0))
"""Of their gaps a third is shorter than the debounce."""


def test_a_user_is_the_same_for_one_seed_and_another_for_another() -> None:
    asked = list(requests_of(3, EditorModel(), 20, seed=1))
    assert asked == list(requests_of(3, EditorModel(), 20, seed=1))
    assert asked != list(requests_of(3, EditorModel(), 20, seed=2))
    assert [each.at for each in asked] != [each.at for each in requests_of(4, EditorModel(), 20, seed=1)]


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = list(requests_of(0, EditorModel(), 10, seed=1)), list(requests_of(0, EditorModel(), 20, seed=1))
    assert long[: len(short)] == short


def test_a_key_followed_within_the_debounce_sends_nothing() -> None:
    asked = requests_of_all(20, FAST, 20, seed=1)
    assert all(each.next_key_at > each.at for each in asked)
    eager = requests_of_all(20, EditorModel(FAST.typing, debounce_s=0.0), 20, seed=1)
    assert len(asked) < 0.8 * len(eager)
    after = {(each.user, round(each.at, 9)) for each in eager}
    assert {(each.user, round(each.at - 0.050, 9)) for each in asked if each.at >= 0.050} <= after


def test_a_pause_is_half_a_second_from_the_key_on() -> None:
    for each in requests_of_all(20, EditorModel(), 20, seed=1):
        assert each.is_pause == (each.next_key_at - (each.at - 0.050) >= 0.500)


def test_requests_come_in_time_and_within_the_time() -> None:
    asked = requests_of_all(20, EditorModel(), 20, seed=1)
    assert all(before.at <= after.at for before, after in itertools.pairwise(asked))
    assert asked[0].at >= 0
    assert asked[-1].at < 20


@pytest.mark.parametrize("model", [EditorModel(), FAST, EditorModel(TypingModel(keys_per_burst=20))])
def test_users_send_requests_at_the_models_rate(model: EditorModel) -> None:
    asked = requests_of_all(500, model, 20, seed=1)
    assert len(asked) / 500 / 20 == pytest.approx(model.requests_per_s, rel=0.1)


def test_resting_users_send_requests_at_the_given_rate() -> None:
    model = EditorModel().resting(0.15)
    assert model.requests_per_s == pytest.approx(0.15)
    assert 0.90 < model.away_share < 0.92
    asked = requests_of_all(5000, model, 20, seed=1)
    assert len(asked) / 5000 / 20 == pytest.approx(0.15, rel=0.15)
    assert all(200 < len({each.user for each in asked if each.at // 1 == second}) < 400 for second in (0, 19))


def test_a_rate_above_that_of_typing_without_rest_is_refused() -> None:
    with pytest.raises(ValueError, match="never rests"):
        EditorModel().resting(2.0)


def test_impossible_typing_is_refused() -> None:
    with pytest.raises(ValueError, match="keys_per_spell"):
        EditorModel(keys_per_spell=0.5)
