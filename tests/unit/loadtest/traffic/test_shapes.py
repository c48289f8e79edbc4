"""Shapes: shares over time, and ranks that are spread evenly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traffic.sections import ShapeSettings
from loadtest.traffic.trace import RANK, READER, REGION, share_at, spread

KINDS = st.sampled_from(["steady", "ramp", "spike", "day"])


@given(KINDS, st.floats(0, 100), st.floats(0.01, 1), st.floats(0.01, 1), st.floats(1, 100), st.floats(0, 50))
def test_a_share_is_above_zero_and_at_most_one(
    kind: str, at_s: float, from_share: float, to_share: float, factor: float, for_s: float
) -> None:
    fields = {"kind": kind, "from_share": from_share, "to_share": to_share, "factor": factor, "for_s": for_s}
    assert 0 < share_at(ShapeSettings.model_validate(fields), at_s, 100) <= 1


def test_steady_is_all() -> None:
    assert {share_at(ShapeSettings(), at_s, 60) for at_s in (0, 30, 60)} == {1.0}


def test_a_ramp_rises_evenly_and_stays() -> None:
    shape = ShapeSettings(kind="ramp", from_share=0.2, to_share=1.0, at_s=10, for_s=20)
    shares = [share_at(shape, at_s, 60) for at_s in (0, 10, 20, 30, 59)]
    assert shares == pytest.approx([0.2, 0.2, 0.6, 1.0, 1.0])


def test_a_ramp_without_a_length_ends_with_the_run() -> None:
    shape = ShapeSettings(kind="ramp", from_share=1.0, to_share=0.5, at_s=10)
    assert share_at(shape, 35, 60) == pytest.approx(0.75)
    assert share_at(shape, 60, 60) == pytest.approx(0.5)


def test_a_spike_is_so_many_times_as_much_for_a_while() -> None:
    shape = ShapeSettings(kind="spike", at_s=25, for_s=10, factor=10)
    shares = [share_at(shape, at_s, 60) for at_s in (0, 24.99, 25, 34.99, 35)]
    assert shares == pytest.approx([0.1, 0.1, 1.0, 1.0, 0.1])
    assert share_at(ShapeSettings(kind="spike", at_s=25, factor=4), 59, 60) == 1.0


def test_a_day_has_two_humps_and_a_night() -> None:
    shape = ShapeSettings(kind="day", from_share=0.05)
    night, noon, lunch, afternoon = (share_at(shape, hour, 24) for hour in (3, 10, 13, 15))
    assert night == 0.05
    assert lunch < afternoon < noon == 1.0
    assert share_at(shape, 10.5, 24) == pytest.approx(0.99), "between two hours there is no step"


def test_days_come_again() -> None:
    shape = ShapeSettings(kind="day", period_s=24)
    assert share_at(shape, 58, 240) == pytest.approx(share_at(shape, 10, 240))


@given(st.integers(0, 100_000), st.sampled_from([RANK, REGION, READER]))
def test_ranks_lie_between_zero_and_one(number: int, over: int) -> None:
    assert 0 <= spread(number, over) < 1


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
    below = sum(spread(number, over) < share for number in numbers)
    # Discrepancy grows with the logarithm; by chance it would be with the square root.
    assert abs(below - share * len(numbers)) <= 3 + 1.5 * math.log2(len(numbers) + 1)


def test_ranks_for_different_purposes_are_independent() -> None:
    both = sum(spread(number, REGION) < 0.5 and spread(number, READER) < 0.5 for number in range(10_000))
    assert both / 10_000 == pytest.approx(0.25, abs=0.01)
