"""Runs, and the differences of two runs that exceed noise; both as a terminal shows them."""

import io
import math
from collections.abc import Callable

import numpy as np
import pytest
from rich.console import Console

from loadtest.report.compare import (
    Change,
    Difference,
    RunDifferences,
    block_length,
    block_weights,
    compare,
    compare_documents,
    widening,
)
from loadtest.report.document import RunDocument
from loadtest.report.tables import print_differences, print_report
from tests.unit.loadtest.run_stats import CRITERIA, make_document, make_stats

PERCENTS = (50, 90, 95, 99, 99.9)


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


def test_figures_without_slices_and_runs_of_too_few_have_no_verdict() -> None:
    named = by_name(compare(make_stats(1), make_stats(2, ttft_ms=300.0), CRITERIA, is_paired=True))
    for name in ("total_ms_p95", "wasted_token_share", "accepted_share"):
        assert named[name].change is Change.UNKNOWN
        assert math.isnan(named[name].difference.low)
    assert "usd_per_completion" not in named
    found = compare(make_stats(1, num_slices=7), make_stats(2, num_slices=30, ttft_ms=500), CRITERIA, is_paired=True)
    assert not found.is_paired, "runs of different length are never paired"
    assert changes(found) == {Change.UNKNOWN}
    assert found.warnings == ("too few slices to tell noise: 7, at least 8 are needed",)


@pytest.mark.parametrize(("num_slices", "length"), [(1, 1), (8, 2), (60, 4), (600, 8)])
def test_blocks_keep_neighbours_together(num_slices: int, length: int) -> None:
    assert block_length(num_slices) == length
    weights = block_weights(num_slices, np.random.default_rng(1), 400)
    assert (weights.sum(axis=1) == num_slices).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(num_slices), abs=0.35)


def test_documents_of_the_same_schedule_are_paired_and_conditions_that_spoil_a_comparison_are_warned_of() -> None:
    def compared(first: RunDocument, second: RunDocument) -> RunDifferences:
        (found,) = compare_documents(first, second, list(zip(first.targets, second.targets, strict=True)))
        return found

    late = make_stats(1)
    late.num_workers = 2
    first, other = make_document(make_stats(1), sessions=10), make_document(late, digest="d2", sessions=20, name="b")
    found = compared(first, make_document(make_stats(2), sessions=10))
    assert (found.is_paired, found.warnings) == (True, ())
    found = compared(first, other)
    assert not found.is_paired
    assert found.warnings == (
        "the runs are of different scenarios: they differ in sessions",
        "B ours is invalid: of 2 workers, number 1 is missing",
    )
    assert "different traces" in compared(first, make_document(make_stats(1), digest="d2", sessions=10)).warnings[0]


def shown(print_it: Callable[[Console], None], *, has_colour: bool = False) -> str:
    """Return what is printed."""
    text = io.StringIO()
    system = "standard" if has_colour else None
    print_it(Console(file=text, width=200, force_terminal=has_colour, color_system=system))
    return text.getvalue()


def report(document: RunDocument, *, has_colour: bool = False) -> str:
    return shown(lambda console: print_report(document, console), has_colour=has_colour)


def line(text: str, *words: str) -> list[str]:
    """Return the cells of the one line that begins with these words."""
    (found,) = (each.split() for each in text.splitlines() if each.split()[: len(words)] == list(words))
    return found


def test_each_target_has_its_figures() -> None:
    ours, theirs = make_stats(1, regions=("us", "eu")), make_stats(2, target="theirs", ttft_ms=200.0, has_stages=False)
    ours.total.counters.update({"error/it broke": 3, "shed_reason/queue full": 2})
    text = report(make_document(ours, theirs))
    assert line(text, "ours", "theirs") == ["ours", "theirs"]
    assert line(text, "asked/s") == ["asked/s", "40.0", "40.0"]
    assert line(text, "sent/s")[0] == "sent/s"
    assert line(text, "seen/s")[1] == "32.3"
    times = [each.split()[2:] for each in text.splitlines() if "TTFT, pauses" in each]
    values = [[each.total.percentile_ms("ttft/pause", percent) for percent in PERCENTS] for each in (ours, theirs)]
    assert times == [[f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in row] for row in values]
    assert text.count("front end") == 1
    for word in ("grpc://127.0.0.1:1", "superseded", "it broke", "shed: queue full", "us", "eu", "wasted tokens"):
        assert word in text


def test_gates_come_last_with_their_values() -> None:
    text = report(make_document(make_stats(1), gates=("error_rate<0.5,seen_per_s>1e6", "usd_per_completion<1")))
    assert line(text, "passed", "ours")[2:] == ["error_rate<0.5", "0.0%"]
    assert line(text, "FAILED", "ours", "seen_per_s>1000000")[3:] == ["31.8"]
    assert "has no value in this run" in text
    assert text.rindex("Gates") > text.rindex("How requests ended")


def test_an_invalid_run_says_so_first_and_in_red_and_markup_in_a_name_is_text() -> None:
    stats = make_stats(1, target="[bold]x[/nothing]", regions=("[red]",))
    assert "INVALID" not in report(make_document(stats))
    stats.num_workers = 2
    first = report(make_document(stats), has_colour=True).splitlines()[0]
    assert "[bold]x[/nothing]: INVALID, of 2 workers, number 1 is missing" in first
    assert "\x1b[1;31m" in first
    assert "[/b]: 20 sessions" in report(make_document(stats, name="[/b]"))


def test_a_comparison_lists_regressions_first() -> None:
    first, second = make_stats(1, target="a [x]"), make_stats(2, ttft_ms=200.0)
    found = compare(first, second, CRITERIA, is_paired=False, names=("[a]", "b"), warnings=("mind [this]",))
    text = shown(lambda console: print_differences(found, console))
    assert "warning: mind [this]" in text
    assert "A = [a], B = b; unpaired, 30 slices" in text
    assert "about 0.05 looks changed" in text
    cells = line(text, "pause_ttft_ms_p50")
    assert cells[-1] == "worse"
    assert text.index("pause_ttft_ms_p50") < text.index("within noise") < text.index("noise unknown")
    assert "-" in line(text, "total_ms_p95")
