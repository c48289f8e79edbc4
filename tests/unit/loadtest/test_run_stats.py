"""Run statistics: they add up in any order, survive a round trip, and have percentiles of the stated precision."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.stats import MAX_SECONDS, Histogram, RunStats, Tally, merge
from tests.unit.loadtest.run_stats import make_stats, record

SECONDS = st.lists(st.floats(1e-6, 60.0), min_size=1, max_size=80)


def histogram(seconds: list[float], digits: int = 3) -> Histogram:
    found = Histogram(digits)
    for each in seconds:
        found.record(each)
    return found


@pytest.mark.parametrize(("digits", "relative", "absolute_ms"), [(3, 0.001, 0.002), (2, 0.01, 0.13)])
@given(seconds=SECONDS, percent=st.sampled_from([50.0, 90.0, 95.0, 99.0, 99.9]))
def test_a_percentile_is_as_exact_as_its_digits_say_and_arrays_are_the_counts(
    digits: int, relative: float, absolute_ms: float, seconds: list[float], percent: float
) -> None:
    found, exact = histogram(seconds, digits), np.array(sorted(seconds)) * 1000
    rank = max(1, int(percent * len(seconds) / 100 + 0.5))  # HDR's rank is rounded to the nearest
    assert found.percentile_ms(percent) == pytest.approx(exact[rank - 1], rel=relative, abs=absolute_ms)
    values, counts = found.arrays()
    assert counts.sum() == len(found) == len(seconds)
    assert np.repeat(values, counts) == pytest.approx(exact, rel=relative, abs=absolute_ms)
    assert (np.diff(values) > 0).all()
    assert values[-1] == found.percentile_ms(100)


def test_a_histogram_survives_being_written_and_times_beyond_the_ends_count_as_the_ends() -> None:
    for found in (histogram([0.001, 0.2, 0.2, 3.0]), Histogram(2)):
        again = Histogram.decode(found.encode())
        assert [each.tolist() for each in again.arrays()] == [each.tolist() for each in found.arrays()]
    for text in ("", "no histogram", "SElTVA=="):
        with pytest.raises(ValueError, match="not an HDR histogram"):
            Histogram.decode(text)
    found = histogram([-1.0, 10 * MAX_SECONDS])
    assert (len(found), found.percentile_ms(1)) == (2, pytest.approx(0, abs=0.002))
    assert found.percentile_ms(100) == pytest.approx(MAX_SECONDS * 1000, rel=0.001)


def three_workers() -> list[RunStats]:
    found = [make_stats(worker, num_slices=3 + worker, per_slice=5) for worker in range(3)]
    for worker, stats in enumerate(found):
        stats.workers, stats.num_workers = frozenset({worker}), 3
    return found


def test_merging_is_associative_knows_no_order_and_leaves_its_inputs() -> None:
    first, second, third = three_workers()
    before = [each.as_json() for each in (first, second, third)]
    orders = ([first, second, third], [merge([first, second]), third], [third, merge([first, second])])
    whole, *others = map(merge, orders)
    assert [each.as_json() for each in (first, second, third)] == before
    assert all(each.as_json() == whole.as_json() for each in others)
    assert (whole.workers, whole.duration_s) == ({0, 1, 2}, 5.0)
    slices = Tally(2)
    for piece in whole.slices:
        slices.add(piece)
    for name in ("intended", "seen", "outcome/answered", "pauses"):
        counted = sum(each.total.counters[name] for each in three_workers())
        assert slices.counters[name] == whole.total.counters[name] == counted
    assert len(slices.histograms["ttft"]) == len(whole.total.histograms["ttft"])


def test_statistics_of_different_runs_do_not_merge() -> None:
    first, second, _third = three_workers()
    second.slice_s = 2.0
    cases = (([], "there are no statistics"), ([first, first], "worker 0 is included twice for ours"))
    for runs, said in (*cases, ([first, second], "statistics of different runs")):
        with pytest.raises(ValueError, match=said):
            merge(runs)


def test_statistics_survive_a_round_trip_through_json_and_go_on() -> None:
    stats = make_stats(3, num_slices=4)
    again = RunStats.from_json(json.loads(json.dumps(stats.as_json())))
    assert again.as_json() == stats.as_json()
    record(again, 1.5, 0.1)
    again.slice_at(-1).counters["seen"] += 1000
    assert (again.slices[1].counters["intended"], again.slices[0].counters["seen"] > 1000) == (41, True)
    assert again.total.counters["intended"] == stats.total.counters["intended"] + 1
