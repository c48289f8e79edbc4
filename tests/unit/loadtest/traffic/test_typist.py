"""The statistics of the typing model against its parameters."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traffic.typist import LogNormal, TypingModel

MODELS = st.builds(
    TypingModel,
    keys_per_burst=st.floats(1, 50),
    micro_pause_share=st.floats(0, 1),
    away_share=st.floats(0, 0.99),
)


@given(MODELS, st.integers(), st.floats(0.1, 60))
def test_keys_rise_from_zero_and_only_the_last_lies_beyond(model: TypingModel, seed: int, duration_s: float) -> None:
    times = model.key_times_s(duration_s, random.Random(seed))
    assert all(a < b for a, b in pairwise(times))
    assert times[0] >= 0
    assert all(at < duration_s for at in times[:-1])
    assert times[-1] >= duration_s
    assert times == model.key_times_s(duration_s, random.Random(seed))


def test_another_seed_types_something_else() -> None:
    model = TypingModel()
    assert model.key_times_s(30, random.Random("a")) != model.key_times_s(30, random.Random("b"))


@pytest.mark.parametrize("away_share", [0.0, 0.8])
def test_rates_are_those_of_long_typing(away_share: float) -> None:
    model, debounce_s, seconds = TypingModel(away_share=away_share), 0.12, 100_000
    times = model.key_times_s(seconds, random.Random(1))
    asked = sum(later - key > debounce_s for key, later in pairwise(times))
    assert (len(times) - 1) / seconds == pytest.approx(model.keys_per_s, rel=0.1)
    assert asked / seconds == pytest.approx(model.requests_per_s(debounce_s), rel=0.1)
    assert model.requests_per_s(0.0) == pytest.approx(model.keys_per_s)


def test_time_away_lowers_the_rate() -> None:
    always, seldom = TypingModel(), TypingModel(away_share=0.8)
    assert seldom.keys_per_s == pytest.approx(0.2 * always.keys_per_s, rel=0.05)
    assert always.keys_per_spell == math.inf
    spell_s = seldom.keys_per_spell / always.keys_per_s
    assert spell_s / (spell_s + seldom.away.mean_s) == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("away_share", [0.0, 0.87])
def test_a_run_begins_anywhere_in_a_life_of_typing(away_share: float) -> None:
    """The rate in the first second is that of all time: no wave of keys, and no silence, at the start."""
    model = TypingModel(away_share=away_share)
    keys = sum(len(model.key_times_s(1, random.Random(seed))) - 1 for seed in range(20_000))
    assert keys / 20_000 == pytest.approx(model.keys_per_s, rel=0.08)


def test_a_distribution_has_its_median_and_mean() -> None:
    gaps, chance = LogNormal(0.17, 0.45), random.Random(1)
    drawn = sorted(gaps.draw(chance) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(0.17, rel=0.02)
    assert sum(drawn) / 20_000 == pytest.approx(gaps.mean_s, rel=0.02)
    assert gaps.share_above(0.17) == pytest.approx(0.5)
    assert sum(gap > 0.3 for gap in drawn) / 20_000 == pytest.approx(gaps.share_above(0.3), abs=0.01)


def test_the_rest_of_a_gap_is_half_of_a_gap_at_a_random_time() -> None:
    """The mean rest is E[x^2] / 2 E[x], the inspection paradox."""
    gaps, chance = LogNormal(0.17, 0.45), random.Random(1)
    rest = sum(gaps.draw_rest(chance) for _ in range(20_000)) / 20_000
    assert rest == pytest.approx(gaps.mean_s * math.exp(gaps.sigma**2) / 2, rel=0.03)


@pytest.mark.parametrize("make", [
    lambda: LogNormal(0.0, 0.5),
    lambda: LogNormal(0.2, 0.0),
    lambda: TypingModel(keys_per_burst=0.5),
    lambda: TypingModel(micro_pause_share=1.5),
    lambda: TypingModel(away_share=1.0),
])  # fmt: skip
def test_impossible_parameters_are_refused(make: "type[object]") -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def test_parameters_are_flat() -> None:
    parameters = TypingModel().parameters()
    assert parameters["key_gap_median_s"] == 0.17
    assert parameters["keys_per_burst"] == 10.0
