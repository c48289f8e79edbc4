"""Run statistics add up and survive a round trip; their figures, of made-up statistics."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from loadtest.report.figures import (
    FIGURES,
    Sums,
    figures,
    reasons_invalid,
    shown,
    without_nan,
)
from loadtest.stats import MAX_SECONDS, Histogram, RunStats, Tally, merge
from tests.unit.loadtest.run_stats import CRITERIA, make_stats, record


def stats(**counters: int) -> RunStats:
    found = RunStats("ours", 10.0, 1.0, workers=frozenset({0}))
    found.total.counters.update({name.replace("__", "/"): count for name, count in counters.items()})
    return found


COUNTED = {
    "intended": 120, "prefetches": 20, "sent": 110, "seen": 50, "pauses": 40, "pauses_in_time": 30, "good": 60,
    "pauses_right": 10,
    "shown": 80, "accepted_chars": 200, "shown_chars": 1000, "seen_tokens": 300, "generated_tokens": 400, "errors": 6,
    "sessions": 7, "outcome__shed": 12, "outcome__superseded": 24, "outcome__hung_up": 18, "outcome__cached": 3,
    "cache__local": 11, "cache__shared": 22, "outcome__unanswered": 9,
}  # fmt: skip
EXPECTED = {
    "offered_per_s": 12.0, "sent_per_s": 11.0, "seen_per_s": 5.0, "seen_share": 0.5, "pauses_per_s": 4.0,
    "pause_in_time_share": 0.75, "pause_right_share": 0.25,
    "good_per_s": 6.0, "accepted_chars_per_s": 20.0, "accepted_share": 0.2,
    "shown_share": 0.8, "shed_share": 0.1, "superseded_share": 0.2, "hung_up_share": 0.15, "cached_share": 0.025,
    "local_hit_share": 0.1, "shared_hit_share": 0.2, "unanswered_share": 0.075, "error_rate": 0.05,
    "wasted_token_share": 0.25, "generated_tokens_per_s": 40.0, "sessions": 7.0, "sessions_lost": 0.0,
    "reconnects": 0.0, "usd_per_completion": 0.002 * 10 / 50,
}  # fmt: skip


def test_rates_and_shares() -> None:
    priced = CRITERIA.model_copy(update={"gpu_hour_usd": 3.6, "num_gpus": 2})
    found = figures(stats(**COUNTED), priced)
    assert {name: found[name] for name in EXPECTED} == pytest.approx(EXPECTED)
    assert math.isnan(found["ttft_ms_p95"])
    assert math.isnan(figures(stats(**COUNTED), CRITERIA)["usd_per_completion"]), "there is no price"
    unknown = figures(stats(intended=1, seen_tokens=5), priced)
    for name in ("usd_per_completion", "generated_tokens_per_s", "wasted_token_share"):
        assert math.isnan(unknown[name])


def test_percentiles_are_of_the_right_histogram() -> None:
    found = stats(intended=1)
    names = {"ttft": "ttft", "pause_ttft": "ttft/pause", "total": "total", "pause_total": "total/pause", "gap": "gap"}
    names |= {"lag": "lag", "front_end": "stage/front_end", "reconnect": "reconnect"}
    for place, histogram in enumerate(names.values(), 1):
        for count in range(1000):
            found.total.record(histogram, place * count / 1e6)
    values = figures(found, CRITERIA)
    for place, name in enumerate(names, 1):
        for suffix, share in {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}.items():
            assert values[f"{name}_ms_{suffix}"] == pytest.approx(place * share, rel=0.003)


def test_empty_slices_count_with_their_duration_and_slices_that_end_early_are_all_counted() -> None:
    empty, early = RunStats("ours", 4.5, 1.0), RunStats("ours", 2.0, 1.0)
    record(empty, 0.5, 0.1)
    assert Sums.of_slices(empty).duration_s[0] == pytest.approx(4.5)
    assert Sums.of_slices(empty, np.eye(5)).duration_s.tolist() == [1, 1, 1, 1, 0.5]
    for at_s in (0.5, 1.5, 2.5, 3.5):  # two blocks of 1.0 s and a bit
        record(early, at_s, 0.1)
    sums = Sums.of_slices(early)
    assert (sums.counter("intended")[0], sums.duration_s[0]) == (4, pytest.approx(2.0))


def test_a_run_is_invalid_if_the_generator_was_late_a_worker_is_missing_or_nothing_was_asked() -> None:
    found = make_stats(1, num_slices=2)
    assert reasons_invalid(found) == ()
    for _ in range(len(found.total.histograms["lag"]) // 20):
        found.total.record("lag", 0.0073)
    (reason,) = reasons_invalid(found)
    assert reason.startswith("the generator was late: its p99 lag is 7.3 ms, more than 5 ms. This machine was busy: ")
    found.workers, found.num_workers = frozenset({0, 2}), 4
    assert reasons_invalid(found)[1:] == ("of 4 workers, number 1, 3 is missing",)
    assert reasons_invalid(stats()) == ("no request was intended",)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("seen_share", 0.256, "25.6%"),
        ("error_rate", 0.00042, "0.042%"),
        ("ttft_ms_p95", 1234.5, "1,234"),
        ("ttft_ms_p95", 0.456, "0.46"),
        ("ttft_ms_p95", math.nan, "-"),
        ("sessions", 10_000.0, "10,000"),
        ("usd_per_completion", 0.0003, "$0.000300"),
    ],
)
def test_values_for_people(name: str, value: float | None, text: str) -> None:
    assert shown(name, value) == text
    assert without_nan({"a": math.nan, "b": 0.123456789}) == {"a": None, "b": 0.123457}


def test_the_documentation_has_every_figure() -> None:
    text = (Path(__file__).parents[4] / "docs" / "loadtest.md").read_text(encoding="utf-8")
    names = {re.sub(r"_p\d+$", "_p50", name) if figure.histogram else name for name, figure in FIGURES.items()}
    assert names - set(re.findall(r"`(\w+)`", text)) == set()


def histogram(seconds: list[float], digits: int = 3) -> Histogram:
    found = Histogram(digits)
    for each in seconds:
        found.record(each)
    return found


def test_a_histogram_survives_being_written_and_times_beyond_the_ends_count_as_the_ends() -> None:
    for found in (histogram([0.001, 0.2, 0.2, 3.0]), Histogram(2)):
        again = Histogram.decode(found.encode())
        assert [each.tolist() for each in again.arrays()] == [each.tolist() for each in found.arrays()]
    with pytest.raises(ValueError, match="not an HDR histogram"):
        Histogram.decode("SElTVA==")
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
    for name in ("intended", "seen"):
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
