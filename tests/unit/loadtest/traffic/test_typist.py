"""The typing model against its parameters; the shapes of a load, and ranks that are spread evenly."""

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traffic.sections import ShapeSettings
from loadtest.traffic.trace import RANK, READER, REGION, share_at, spread
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
    assert times != model.key_times_s(duration_s, random.Random(f"not {seed}"))


@pytest.mark.parametrize("away_share", [0.0, 0.8])
def test_rates_are_those_of_long_typing(away_share: float) -> None:
    model, debounce_s, seconds = TypingModel(away_share=away_share), 0.12, 100_000
    times = model.key_times_s(seconds, random.Random(1))
    asked = sum(later - key > debounce_s for key, later in pairwise(times))
    assert (len(times) - 1) / seconds == pytest.approx(model.keys_per_s, rel=0.1)
    assert asked / seconds == pytest.approx(model.requests_per_s(debounce_s), rel=0.1)
    assert model.requests_per_s(0.0) == pytest.approx(model.keys_per_s)


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


RAMP = {"kind": "ramp", "from_share": 0.2, "to_share": 1.0, "at_s": 10, "for_s": 20}
SPIKE = {"kind": "spike", "at_s": 25, "for_s": 10, "factor": 10}


@pytest.mark.parametrize(
    ("fields", "shares"),
    [
        ({}, {0: 1, 30: 1, 60: 1}),
        (RAMP, {0: 0.2, 10: 0.2, 20: 0.6, 30: 1, 59: 1}),
        (RAMP | {"from_share": 1.0, "to_share": 0.5, "for_s": 0}, {35: 0.75, 60: 0.5}),
        (SPIKE, {0: 0.1, 24.99: 0.1, 25: 1, 34.99: 1, 35: 0.1}),
        (SPIKE | {"for_s": 0, "factor": 4}, {24: 0.25, 59: 1}),
        # An hour is 2.5 s: the night, the humps before and after lunch, no step between two hours, and the next day.
        ({"kind": "day"}, {7.5: 0.05, 25: 1, 26.25: 0.99, 32.5: 0.7, 37.5: 0.97}),
        ({"kind": "day", "period_s": 24}, {10: 1, 58: 1}),
    ],
    ids=["steady", "ramp", "ramp to the end", "spike", "spike to the end", "day", "days come again"],
)
def test_a_shape_has_its_share_at_each_time(fields: dict[str, Any], shares: dict[float, float]) -> None:
    shape = ShapeSettings.model_validate(fields)
    assert [share_at(shape, at_s, 60) for at_s in shares] == pytest.approx(list(shares.values()))


@given(
    st.integers(20, 3_000),
    st.sampled_from([RANK, REGION, READER]),
    st.floats(0, 1),
    st.integers(1, 8),
    st.data(),
)
def test_every_part_of_the_sessions_is_a_picture_of_all(
    count: int, over: int, share: float, num_workers: int, data: st.DataObject
) -> None:
    worker = data.draw(st.integers(0, num_workers - 1))
    numbers = range(worker, count, num_workers)
    assert all(0 <= spread(number, over) < 1 for number in numbers)
    below = sum(spread(number, over) < share for number in numbers)
    both = sum(spread(number, REGION) < 0.5 and spread(number, READER) < 0.5 for number in range(10_000))
    assert both / 10_000 == pytest.approx(0.25, abs=0.01), "ranks for different purposes are independent"
    # Discrepancy grows with the logarithm; by chance it would be with the square root.
    assert abs(below - share * len(numbers)) <= 3 + 1.5 * math.log2(len(numbers) + 1)
