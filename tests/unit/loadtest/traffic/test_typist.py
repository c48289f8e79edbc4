"""The typing model against its parameters; the shapes of a load, and ranks that are spread evenly."""

import random
from itertools import pairwise
from typing import Any

import pytest

from loadtest.traffic.sections import ShapeSettings
from loadtest.traffic.trace import share_at
from loadtest.traffic.typist import TypingModel


@pytest.mark.parametrize("away_share", [0.0, 0.8])
def test_rates_are_those_of_long_typing(away_share: float) -> None:
    model, debounce_s, seconds = TypingModel(away_share=away_share), 0.12, 100_000
    times = model.key_times_s(seconds, random.Random(1))
    asked = sum(later - key > debounce_s for key, later in pairwise(times))
    assert (len(times) - 1) / seconds == pytest.approx(model.keys_per_s, rel=0.1)
    assert asked / seconds == pytest.approx(model.requests_per_s(debounce_s), rel=0.1)
    assert model.requests_per_s(0.0) == pytest.approx(model.keys_per_s)


def test_a_run_begins_anywhere_in_a_life_of_typing() -> None:
    """The rate in the first second is that of all time: no wave of keys, and no silence, at the start."""
    model = TypingModel(away_share=0.87)
    keys = sum(len(model.key_times_s(1, random.Random(seed))) - 1 for seed in range(20_000))
    assert keys / 20_000 == pytest.approx(model.keys_per_s, rel=0.08)


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
