"""Run statistics: they add up in any order, survive a round trip, and have percentiles of the stated precision."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.stats import MAX_SECONDS, Histogram, RunStats, Tally, merge
from tests.support.examples import examples
from tests.unit.loadtest.run_stats import make_stats, record

SECONDS = st.lists(st.floats(1e-6, 60.0), min_size=1, max_size=80)


def histogram(seconds: list[float], digits: int = 3) -> Histogram:
    found = Histogram(digits)
    for each in seconds:
        found.record(each)
    return found


@pytest.mark.parametrize(("digits", "relative", "absolute_ms"), [(3, 0.001, 0.002), (2, 0.01, 0.13)])
@given(seconds=SECONDS, percent=st.sampled_from([50.0, 90.0, 95.0, 99.0, 99.9]))
def test_a_percentile_is_as_exact_as_its_digits_say(
    digits: int, relative: float, absolute_ms: float, seconds: list[float], percent: float
) -> None:
    found = histogram(seconds, digits).percentile_ms(percent)
    exact = np.array(sorted(seconds)) * 1000
    # HDR's rank is rounded to the nearest; numpy's may be the neighbour of it.
    rank = max(1, int(percent * len(seconds) / 100 + 0.5))
    assert found == pytest.approx(exact[rank - 1], rel=relative, abs=absolute_ms)
    low, high = (np.percentile(exact, percent, method=method) for method in ("lower", "higher"))
    spacing = max(abs(exact[max(0, rank - 2)] - low), abs(exact[min(len(exact), rank + 1) - 1] - high), 0)
    assert low * (1 - relative) - absolute_ms - spacing <= found <= high * (1 + relative) + absolute_ms + spacing


@given(seconds=SECONDS)
@settings(max_examples=examples(0.5))
def test_arrays_equal_the_histograms_counts(seconds: list[float]) -> None:
    found = histogram(seconds)
    values, counts = found.arrays()
    assert counts.sum() == len(found) == len(seconds)
    assert (np.diff(values) > 0).all()
    assert values[-1] == found.percentile_ms(100)
    assert np.repeat(values, counts) == pytest.approx(np.array(sorted(seconds)) * 1000, rel=0.001, abs=0.002)


def test_a_histogram_survives_being_written() -> None:
    for found in (histogram([0.001, 0.2, 0.2, 3.0]), Histogram(2)):
        again = Histogram.decode(found.encode())
        assert [each.tolist() for each in again.arrays()] == [each.tolist() for each in found.arrays()]
        assert again.percentile_ms(50) == pytest.approx(found.percentile_ms(50), nan_ok=True)
    for text in ("", "no histogram", "SElTVA=="):
        with pytest.raises(ValueError, match="not an HDR histogram"):
            Histogram.decode(text)


def test_times_beyond_the_ends_count_as_the_ends() -> None:
    found = histogram([-1.0, 10 * MAX_SECONDS])
    assert (len(found), found.percentile_ms(1)) == (2, pytest.approx(0, abs=0.002))
    assert found.percentile_ms(100) == pytest.approx(MAX_SECONDS * 1000, rel=0.001)


def three_workers(num: int = 3) -> list[RunStats]:
    found = []
    for worker in range(num):
        stats = make_stats(worker, num_slices=3 + worker, per_slice=5)
        stats.workers, stats.num_workers, stats.target = frozenset({worker}), num, "ours"
        found.append(stats)
    return found


def test_merging_is_associative_knows_no_order_and_leaves_its_inputs() -> None:
    first, second, third = three_workers()
    before = [each.as_json() for each in (first, second, third)]
    found = [
        merge([first, second, third]),
        merge([merge([first, second]), third]),
        merge([first, merge([second, third])]),
        merge([third, first, second]),
    ]
    assert [each.as_json() for each in (first, second, third)] == before
    assert all(each.as_json() == found[0].as_json() for each in found)
    assert found[0].workers == {0, 1, 2}
    assert found[0].duration_s == 5.0
    slices = Tally(2)
    for piece in found[0].slices:
        slices.add(piece)
    for name in ("intended", "seen", "outcome/answered", "pauses"):
        counted = sum(each.total.counters[name] for each in three_workers())
        assert slices.counters[name] == found[0].total.counters[name] == counted
    assert len(slices.histograms["ttft"]) == len(found[0].total.histograms["ttft"])


def test_statistics_of_different_runs_do_not_merge() -> None:
    first, second, _third = three_workers()
    with pytest.raises(ValueError, match="there are no statistics"):
        merge([])
    with pytest.raises(ValueError, match="worker 0 is included twice for ours"):
        merge([first, first])
    second.slice_s = 2.0
    with pytest.raises(ValueError, match="statistics of different runs"):
        merge([first, second])


def test_statistics_survive_a_round_trip_through_json() -> None:
    stats = make_stats(3, num_slices=4)
    again = RunStats.from_json(json.loads(json.dumps(stats.as_json())))
    assert again.as_json() == stats.as_json()
    record(again, 1.5, 0.1)  # it can go on
    again.slice_at(-1).counters["seen"] += 1000
    assert (again.slices[1].counters["intended"], again.slices[0].counters["seen"] > 1000) == (41, True)
    assert again.total.counters["intended"] == stats.total.counters["intended"] + 1
