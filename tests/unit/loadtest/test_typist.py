"""The typing model against what its parameters promise."""

import random
from itertools import pairwise

import pytest

from loadtest.typist import LogNormal, TypingModel


def test_the_same_seed_types_the_same() -> None:
    model = TypingModel()
    assert model.key_times_s(30, random.Random("a")) == model.key_times_s(30, random.Random("a"))
    assert model.key_times_s(30, random.Random("a")) != model.key_times_s(30, random.Random("b"))


def test_keys_rise_from_zero_and_only_the_last_lies_beyond() -> None:
    times = TypingModel().key_times_s(30, random.Random(1))
    assert all(a < b for a, b in pairwise(times))
    assert times[0] >= 0
    assert times[-2] < 30 <= times[-1]


def test_rates_are_those_of_long_typing() -> None:
    model, debounce_s = TypingModel(), 0.12
    times = model.key_times_s(20_000, random.Random(1))
    asked = sum(later - key > debounce_s for key, later in pairwise(times))
    assert (len(times) - 1) / 20_000 == pytest.approx(model.keys_per_s, rel=0.05)
    assert asked / 20_000 == pytest.approx(model.requests_per_s(debounce_s), rel=0.05)
    assert model.requests_per_s(0.0) == pytest.approx(model.keys_per_s)


def test_a_trace_begins_anywhere_in_a_pause() -> None:
    """Were each to begin with a burst, all would have a key within a second."""
    model = TypingModel()
    firsts = [model.key_times_s(1, random.Random(seed))[0] for seed in range(300)]
    assert sum(first > 1 for first in firsts) > 60


def test_a_distribution_has_its_median_and_mean() -> None:
    gaps, chance = LogNormal(0.17, 0.45), random.Random(1)
    drawn = sorted(gaps.draw(chance) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(0.17, rel=0.02)
    assert sum(drawn) / 20_000 == pytest.approx(gaps.mean_s, rel=0.02)
    assert gaps.share_above(0.17) == pytest.approx(0.5)
    assert sum(gap > 0.3 for gap in drawn) / 20_000 == pytest.approx(gaps.share_above(0.3), abs=0.01)


@pytest.mark.parametrize("make", [
    lambda: LogNormal(0.0, 0.5),
    lambda: LogNormal(0.2, 0.0),
    lambda: TypingModel(keys_per_burst=0.5),
    lambda: TypingModel(long_pause_share=1.5),
])  # fmt: skip
def test_what_nobody_types_is_refused(make: "type[object]") -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def test_parameters_are_flat() -> None:
    parameters = TypingModel().parameters()
    assert parameters["key_gap_median_s"] == 0.17
    assert parameters["keys_per_burst"] == 10.0
