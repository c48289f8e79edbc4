"""The differences of two runs that exceed noise, and both as a terminal shows them."""

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loadtest.report.compare import Difference, RunDifferences, block_length, block_weights, compare, widening
from loadtest.report.document import RunDocument
from loadtest.report.tables import print_differences, print_report
from loadtest.stats import RunStats
from tests.unit.loadtest.run_stats import make_document, make_stats

PERCENTS = (50, 90, 95, 99, 99.9)


def differences(first: RunStats, second: RunStats, *, is_paired: bool = True, **scenario: Any) -> RunDifferences:
    documents = make_document(first), make_document(second, digest="d1" if is_paired else "d2", **scenario)
    return compare(documents, (documents[0].targets[0], documents[1].targets[0]))


def by_name(found: RunDifferences) -> dict[str, Difference]:
    return {each.figure: each for each in found.differences}


def test_runs_that_differ_by_chance_alone_seldom_look_changed() -> None:
    made = [make_stats(seed, per_slice=10) for seed in range(16)]
    verdicts = [
        by_name(differences(first, second, is_paired=False))[figure].change
        for first, second in zip(made[::2], made[1::2], strict=True)
        for figure in ("seen_per_s", "pause_ttft_ms_p95")
    ]
    assert sum(each != "within noise" for each in verdicts) <= 3
    same = differences(make_stats(1), make_stats(1)).differences
    assert {each.change for each in same} == {"within noise", "noise unknown"}


def test_intervals_from_few_slices_are_wider() -> None:
    assert widening(8, 0.95) == pytest.approx(3.182 / 1.960 * math.sqrt(4 / 3), rel=0.05)  # four blocks, from a table
    assert widening(600, 0.95) == pytest.approx(1.0, abs=0.03)
    assert widening(30, 0.99) > widening(30, 0.95) > widening(60, 0.95) > 1


@pytest.mark.parametrize("is_paired", [True, False])
def test_a_shift_is_found_and_its_size_lies_in_the_interval(is_paired: bool) -> None:
    found = differences(make_stats(1), make_stats(2, ttft_ms=135.0, seen_share=0.6), is_paired=is_paired)
    named = by_name(found)
    assert found.is_paired is is_paired
    changes = {"pause_ttft_ms_p50": "worse", "seen_per_s": "worse", "superseded_share": "different"}
    assert {name: named[name].change for name in changes} == changes
    assert named["offered_per_s"].change == "within noise"
    (low, high), (least, most) = named["pause_ttft_ms_p50"].ratio, named["seen_per_s"].difference
    assert 1.1 < low < 1.5 < high < 1.9
    assert least < -8 < most < 0


def test_a_paired_comparison_shows_a_change_that_an_unpaired_one_hides() -> None:
    """Both slow down and recover together; one is 3% slower throughout."""
    first, second = (make_stats(7, num_slices=60, ttft_ms=ms) for ms in (100.0, 103.0))
    changes = [
        by_name(differences(first, second, is_paired=is_paired))["ttft_ms_p50"].change for is_paired in (True, False)
    ]
    assert changes == ["worse", "within noise"]


def test_swapping_the_runs_flips_everything() -> None:
    first, second = make_stats(1), make_stats(2, ttft_ms=120.0, seen_share=0.7)
    forth, back = by_name(differences(first, second)), by_name(differences(second, first))
    flipped = {"better": "worse", "worse": "better"}
    assert {"worse", "different", "within noise"} <= {each.change for each in forth.values()}
    for name, each in forth.items():
        assert back[name].change == flipped.get(each.change, each.change)
        mirrored = (-each.difference[1], -each.difference[0])
        assert back[name].difference == pytest.approx(mirrored, nan_ok=True)


def test_figures_without_slices_and_runs_of_too_few_have_no_verdict() -> None:
    named = by_name(differences(make_stats(1), make_stats(2, ttft_ms=300.0)))
    for name in ("total_ms_p95", "wasted_token_share", "accepted_share"):
        assert named[name].change == "noise unknown"
    assert "usd_per_completion" not in named
    found = differences(make_stats(1, num_slices=7), make_stats(2, num_slices=30, ttft_ms=500))
    assert not found.is_paired, "runs of different length are never paired"
    assert {each.change for each in found.differences} == {"noise unknown"}
    assert found.warnings == ("too few slices to tell noise: 7, at least 8 are needed",)


@pytest.mark.parametrize(("num_slices", "length"), [(1, 1), (8, 2), (60, 4), (600, 8)])
def test_blocks_keep_neighbours_together(num_slices: int, length: int) -> None:
    assert block_length(num_slices) == length
    weights = block_weights(num_slices, np.random.default_rng(1), 400)
    assert (weights.sum(axis=1) == num_slices).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(num_slices), abs=0.35)


def test_conditions_that_spoil_a_comparison_are_warned_of() -> None:
    late = make_stats(1)
    late.num_workers = 2
    assert differences(make_stats(1), make_stats(2)).warnings == ()
    assert differences(make_stats(1), late, is_paired=False, sessions=30).warnings == (
        "the runs are of different scenarios: they differ in sessions",
        "B ours is invalid: of 2 workers, number 1 is missing",
    )
    assert "different traces" in differences(make_stats(1), make_stats(2), is_paired=False).warnings[0]


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


def test_each_target_has_its_figures_and_gates_come_last() -> None:
    ours, theirs = make_stats(1, regions=("us", "eu")), make_stats(2, target="theirs", ttft_ms=200.0, has_stages=False)
    ours.total.counters.update({"error/it broke": 3, "shed_reason/queue full": 2})
    text = report(make_document(ours, theirs, gates=("seen_per_s>1e6,usd_per_completion<1",)))
    assert line(text, "asked/s") == ["asked/s", "40.0", "40.0"]
    assert line(text, "seen/s")[1] == "32.3"
    times = [each.split()[2:] for each in text.splitlines() if "TTFT, pauses" in each]
    values = [[each.total.percentile_ms("ttft/pause", percent) for percent in PERCENTS] for each in (ours, theirs)]
    assert times == [[f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in row] for row in values]
    assert text.count("front end") == 1
    for word in ("grpc://127.0.0.1:1", "superseded", "it broke", "shed: queue full", "us", "eu", "wasted tokens"):
        assert word in text
    assert line(text, "FAILED", "ours", "seen_per_s>1000000")[3:] == ["32.3"]
    assert "has no value in this run" in text
    assert text.rindex("Gates") > text.rindex("How requests ended")


def test_an_invalid_run_says_so_first_and_in_red_and_markup_in_a_name_is_text() -> None:
    stats = make_stats(1, target="[bold]x[/nothing]", regions=("[red]",))
    stats.num_workers = 2
    text = report(make_document(stats, name="[/b]"), has_colour=True)
    first = text.splitlines()[0]
    assert "[bold]x[/nothing]: INVALID, of 2 workers, number 1 is missing" in first
    assert "\x1b[1;31m" in first
    assert "[/b]: 20 sessions" in text


def test_a_comparison_lists_regressions_first() -> None:
    found = differences(make_stats(1, target="[a]"), make_stats(2, target="b", ttft_ms=200.0), is_paired=False)
    text = shown(lambda console: print_differences(found, console))
    assert "warning: the runs have different traces" in text
    assert "A = [a], B = b; unpaired, 30 slices" in text
    assert "about 0.05 looks changed" in text
    assert line(text, "pause_ttft_ms_p50")[-1] == "worse"
    assert text.index("pause_ttft_ms_p50") < text.index("within noise") < text.index("noise unknown")
    assert "-" in line(text, "total_ms_p95")
