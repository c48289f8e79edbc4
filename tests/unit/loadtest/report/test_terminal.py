"""Runs and comparisons in a terminal."""

import io

from rich.console import Console

from loadtest.report.compare import compare
from loadtest.report.document import RunDocument
from loadtest.report.tables import print_differences, print_report
from tests.unit.loadtest.run_stats import CRITERIA, make_document, make_stats


def console(*, has_colour: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=200, force_terminal=has_colour, color_system="standard" if has_colour else None
    )


def report(document: RunDocument, *, has_colour: bool = False) -> str:
    shown = console(has_colour=has_colour)
    print_report(document, shown)
    return _text(shown)


def _text(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


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
    times = [each for each in text.splitlines() if "TTFT, pauses" in each]
    assert [each.split()[2:] for each in times] == [
        [str(f"{value:.1f}" if value < 100 else f"{value:.0f}") for value in _percentiles(stats)]
        for stats in (ours, theirs)
    ]
    assert text.count("front end") == 1
    for word in ("grpc://127.0.0.1:1", "superseded", "it broke", "shed: queue full", "us", "eu", "wasted tokens"):
        assert word in text


def _percentiles(stats: object) -> list[float]:
    histogram = stats.total.histograms["ttft/pause"]  # type: ignore[attr-defined]
    return [histogram.percentile_ms(percent) for percent in (50, 90, 95, 99, 99.9)]


def test_gates_come_last_with_their_values() -> None:
    text = report(make_document(make_stats(1), gates=("error_rate<0.5,seen_per_s>1e6", "usd_per_completion<1")))
    assert line(text, "passed", "ours")[2:] == ["error_rate<0.5", "0.0%"]
    assert line(text, "FAILED", "ours", "seen_per_s>1000000")[3:] == ["31.8"]
    assert "has no value in this run" in text
    assert text.rindex("Gates") > text.rindex("How requests ended")


def test_an_invalid_run_says_so_first_and_in_red() -> None:
    stats = make_stats(1)
    stats.num_workers = 2
    text = report(make_document(stats), has_colour=True)
    first = text.splitlines()[0]
    assert "ours: INVALID, of 2 workers, number 1 is missing" in first
    assert "\x1b[1;31m" in first
    assert "INVALID" not in report(make_document(make_stats(1)))


def test_markup_in_a_name_is_text() -> None:
    stats = make_stats(1, target="[bold]x[/nothing]", regions=("[red]",))
    text = report(make_document(stats, name="[/b]"))
    assert "[bold]x[/nothing]" in text
    assert "[/b]: 20 sessions" in text


def test_a_comparison_lists_regressions_first() -> None:
    shown = console()
    first, second = make_stats(1, target="a [x]"), make_stats(2, ttft_ms=200.0)
    found = compare(first, second, CRITERIA, is_paired=False, names=("[a]", "b"), warnings=("mind [this]",))
    print_differences(found, shown)
    text = _text(shown)
    assert "warning: mind [this]" in text
    assert "A = [a], B = b; unpaired, 30 slices" in text
    assert "about 0.05 looks changed" in text
    cells = line(text, "pause_ttft_ms_p50")
    assert cells[-1] == "worse"
    assert text.index("pause_ttft_ms_p50") < text.index("within noise") < text.index("noise unknown")
    assert "-" in line(text, "total_ms_p95")
