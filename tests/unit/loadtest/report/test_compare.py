"""Differences of two runs that exceed noise."""

import math

import numpy as np
import pytest

from loadtest.report.compare import Change, Difference, RunDifferences, block_length, block_weights, compare, widening
from loadtest.report.compare import compare_documents as compare_all
from loadtest.report.document import RunDocument, named_alike
from tests.unit.loadtest.run_stats import CRITERIA, make_document, make_stats


def by_name(found: RunDifferences) -> dict[str, Difference]:
    return {each.figure: each for each in found.differences}


def changes(found: RunDifferences) -> set[Change]:
    return {each.change for each in found.differences}


def test_equal_runs_do_not_differ() -> None:
    found = compare(make_stats(1), make_stats(1), CRITERIA, is_paired=True)
    assert changes(found) == {Change.WITHIN_NOISE, Change.UNKNOWN}
    assert all(each.difference.low in (0.0, pytest.approx(math.nan, nan_ok=True)) for each in found.differences)


def test_runs_that_differ_by_chance_alone_seldom_look_changed() -> None:
    made = [make_stats(seed, per_slice=10) for seed in range(16)]
    verdicts = [
        by_name(compare(first, second, CRITERIA, is_paired=False))[figure].change
        for first, second in zip(made[::2], made[1::2], strict=True)
        for figure in ("seen_per_s", "pause_ttft_ms_p95")
    ]
    assert sum(each is not Change.WITHIN_NOISE for each in verdicts) <= 3


def test_intervals_from_few_slices_are_wider() -> None:
    assert widening(8, 0.95) == pytest.approx(3.182 / 1.960 * math.sqrt(4 / 3), rel=0.05)  # four blocks, from a table
    assert widening(600, 0.95) == pytest.approx(1.0, abs=0.03)
    assert widening(30, 0.99) > widening(30, 0.95) > widening(60, 0.95) > 1


@pytest.mark.parametrize("is_paired", [True, False])
def test_a_shift_is_found_and_its_size_lies_in_the_interval(is_paired: bool) -> None:
    found = compare(make_stats(1), make_stats(2, ttft_ms=135.0, seen_share=0.6), CRITERIA, is_paired=is_paired)
    named = by_name(found)
    assert found.is_paired is is_paired
    assert named["pause_ttft_ms_p50"].change is Change.WORSE
    assert 1.1 < named["pause_ttft_ms_p50"].ratio.low < 1.5 < named["pause_ttft_ms_p50"].ratio.high < 1.9
    assert named["seen_per_s"].change is Change.WORSE
    assert named["seen_per_s"].difference.low < -8 < named["seen_per_s"].difference.high < 0
    assert named["superseded_share"].change is Change.DIFFERENT
    assert named["offered_per_s"].change is Change.WITHIN_NOISE


def test_a_paired_comparison_shows_a_change_that_an_unpaired_one_hides() -> None:
    """Both slow down and recover together; one is 3% slower throughout."""
    first, second = (make_stats(7, num_slices=60, ttft_ms=ms) for ms in (100.0, 103.0))
    paired, unpaired = (compare(first, second, CRITERIA, is_paired=is_paired) for is_paired in (True, False))
    assert by_name(paired)["ttft_ms_p50"].change is Change.WORSE
    assert by_name(unpaired)["ttft_ms_p50"].change is Change.WITHIN_NOISE


def test_swapping_the_runs_flips_everything() -> None:
    first, second = make_stats(1), make_stats(2, ttft_ms=120.0, seen_share=0.7)
    forth = by_name(compare(first, second, CRITERIA, is_paired=True))
    back = by_name(compare(second, first, CRITERIA, is_paired=True))
    flipped = {Change.BETTER: Change.WORSE, Change.WORSE: Change.BETTER}
    assert {Change.WORSE, Change.DIFFERENT, Change.WITHIN_NOISE} <= {each.change for each in forth.values()}
    for name, each in forth.items():
        other = back[name]
        assert other.change is flipped.get(each.change, each.change)
        assert (other.first, other.second) == pytest.approx((each.second, each.first), nan_ok=True)
        mirrored = (-each.difference.high, -each.difference.low)
        assert (other.difference.low, other.difference.high) == pytest.approx(mirrored, nan_ok=True)


def test_a_figure_without_slices_has_no_verdict() -> None:
    named = by_name(compare(make_stats(1), make_stats(2, ttft_ms=300.0), CRITERIA, is_paired=True))
    for name in ("total_ms_p95", "wasted_token_share", "accepted_share"):
        assert named[name].change is Change.UNKNOWN
        assert math.isnan(named[name].difference.low)
    assert "usd_per_completion" not in named


def test_too_few_slices_give_no_verdict() -> None:
    found = compare(make_stats(1, num_slices=7), make_stats(2, num_slices=30, ttft_ms=500), CRITERIA, is_paired=False)
    assert changes(found) == {Change.UNKNOWN}
    assert found.warnings == ("too few slices to tell noise: 7, at least 8 are needed",)


def test_runs_of_different_length_are_never_paired() -> None:
    found = compare(make_stats(1, num_slices=20), make_stats(1, num_slices=30), CRITERIA, is_paired=True)
    assert not found.is_paired


@pytest.mark.parametrize(("num_slices", "length"), [(1, 1), (8, 2), (60, 4), (600, 8)])
def test_blocks_keep_neighbours_together(num_slices: int, length: int) -> None:
    assert block_length(num_slices) == length
    weights = block_weights(num_slices, np.random.default_rng(1), 400)
    assert (weights.sum(axis=1) == num_slices).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(num_slices), abs=0.35)


def compare_documents(first: RunDocument, second: RunDocument) -> RunDifferences:
    (found,) = compare_all(first, second, list(named_alike(first, second)))
    return found


def test_documents_of_the_same_schedule_are_paired() -> None:
    first, second = make_document(make_stats(1)), make_document(make_stats(2))
    found = compare_documents(first, second)
    assert found.is_paired
    assert found.warnings == ()


def test_conditions_that_spoil_a_comparison_are_warned_of() -> None:
    late = make_stats(1)
    late.num_workers = 2
    first = make_document(make_stats(1), sessions=10)
    second = make_document(late, digest="d2", sessions=20, name="other")
    found = compare_documents(first, second)
    assert not found.is_paired
    assert found.warnings == (
        "the runs are of different scenarios: they differ in sessions",
        "B ours is invalid: of 2 workers, number 1 is missing",
    )
    same = compare_documents(make_document(make_stats(1)), make_document(make_stats(1), digest="d2"))
    assert "different traces" in same.warnings[0]


def test_single_targets_are_compared_whatever_their_names() -> None:
    ours, theirs = make_document(make_stats(1)), make_document(make_stats(1, target="theirs"))
    both = make_document(make_stats(1), make_stats(1, target="theirs"))
    assert [(a.name, b.name) for a, b in named_alike(ours, theirs)] == [("ours", "theirs")]
    assert [(a.name, b.name) for a, b in named_alike(both, theirs)] == [("theirs", "theirs")]
    assert [(a.name, b.name) for a, b in named_alike(both, both)] == [("ours", "ours"), ("theirs", "theirs")]
