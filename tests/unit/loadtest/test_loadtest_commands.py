"""The commands that read runs and search a capacity: options, output and exit codes, with runs that cost nothing."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from loadtest.__main__ import main
from loadtest.commands import searches as search_commands
from loadtest.driving.run import RunResult
from loadtest.report.document import RunDocument
from loadtest.search import Capacity, SearchSettings, Trial, find_capacity
from loadtest.stats import RunStats
from loadtest.targets import TargetSpec
from loadtest.traffic.scenario import Scenario
from tests.unit.loadtest.run_stats import make_document, make_stats

TARGET = "ours=grpc://127.0.0.1:1"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(name: str, document: RunDocument) -> Path:
        document.write(tmp_path / name)
        return tmp_path / name

    return written


def test_a_report_is_shown_again(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write("run.json", make_document(make_stats(1)))
    found = invoke("report", path, "--html", tmp_path / "run.html", "--gate", "error_rate<0.5")
    assert found.exit_code == 0, found.output
    assert "What editors felt" in found.output
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert invoke("report", path, "--gate", "error_rate>0.5").exit_code == 1
    again = json.loads(invoke("report", path, "--json", "--gate", "error_rate<0.5").stdout)
    assert again["gates"] == ["error_rate<0.5"]


def test_the_packaged_scenarios_are_listed_in_lines_that_fit_a_wide_terminal() -> None:
    lines = invoke("scenarios").output.splitlines()
    assert {"editors-10k", "steady"} <= {line.partition(" ")[0] for line in lines}
    assert max(map(len, lines)) <= 150


@pytest.mark.parametrize(
    ("error_share", "num_workers", "gates", "code", "said"),
    [
        (0.0, 2, (), 3, "INVALID, of 2 workers, number 1 is missing"),
        (0.86, 1, (), 1, "FAILED, 86.0% of the requests failed, more than 5%"),
        (0.86, 1, ("error_rate<0.9",), 0, ""),
        (0.04, 1, (), 0, ""),
        (0.0, 1, ("speed<1",), 2, "there is no figure 'speed'"),
    ],
    ids=["invalid", "many errors", "a gate allows them", "few errors", "unknown figure"],
)
def test_a_report_ends_with_the_status_of_its_run(
    write: Callable[..., Path], error_share: float, num_workers: int, gates: tuple[str, ...], code: int, said: str
) -> None:
    stats = make_stats(1)
    stats.num_workers = num_workers
    stats.total.counters["errors"] = round(error_share * stats.total.counters["intended"])
    options = [word for gate in gates for word in ("--gate", gate)]
    found = invoke("report", write("run.json", make_document(stats)), *options)
    assert found.exit_code == code
    assert said in " ".join(found.output.split())


def test_compare_takes_targets_by_name_and_lists_their_differences(write: Callable[..., Path]) -> None:
    before, after = (write(f"{ms}.json", make_document(make_stats(1, ttft_ms=ms))) for ms in (100.0, 150.0))
    assert "worse" in invoke("compare", before, after).output
    answer = json.loads(invoke("compare", before, after, "--json").output)
    figure = answer["figures"]["ttft_ms_p50"]
    assert (answer["is_paired"], figure["change"]) == (True, "worse")
    assert figure["ratio"] == pytest.approx([1.5, 1.5], rel=0.02)
    assert answer["figures"]["total_ms_p50"]["difference"] is None
    both = write("run.json", make_document(make_stats(1), make_stats(2, target="theirs")))
    theirs = write("theirs.json", make_document(make_stats(2, target="theirs")))
    for arguments, names in (
        ((both, both, "--target", "ours", "--against", "theirs"), [("ours", "theirs")]),
        ((both, theirs), [("theirs", "theirs")]),
        ((before, theirs), [("ours", "theirs")]),
    ):
        answers = map(json.loads, invoke("compare", *arguments, "--json").output.splitlines())
        assert [(answer["first"], answer["second"]) for answer in answers] == names
    others = write("others.json", make_document(make_stats(1, target="c"), make_stats(2, target="d")))
    for arguments, said in (
        ((both, both, "--target", "other"), "there is no target 'other', only ours, theirs"),
        ((both, others), "no target is in both: A has ours, theirs, B has c, d"),
    ):
        found = invoke("compare", *arguments)
        assert (found.exit_code, said in found.output) == (2, True), found.output


class Runs:
    """Stands for run_scenario: a server that is quick for so many sessions and slow above."""

    def __init__(self, capacity: int = 300, *, late_above: int = 10**9, interrupted_at: int = 0) -> None:
        self.capacity, self.late_above, self.interrupted_at = capacity, late_above, interrupted_at
        self.asked: list[tuple[str, int, Any, int]] = []

    def __call__(self, scenario: Scenario, specs: Sequence[TargetSpec], *, workers: int, progress: object) -> RunResult:
        (spec,) = specs
        self.asked.append((spec.name, scenario.sessions, scenario.seed, workers))
        if scenario.sessions == self.interrupted_at:
            return RunResult(interrupted=True)
        ttft_ms = 100.0 if scenario.sessions <= self.capacity else 400.0
        stats: RunStats = make_stats(1, target=spec.name, num_slices=2, per_slice=10, ttft_ms=ttft_ms)
        if scenario.sessions > self.late_above:
            stats.num_workers = 2
        return RunResult({spec.name: stats})


def run_with(monkeypatch: pytest.MonkeyPatch, runs: Runs, *arguments: object) -> Result:
    monkeypatch.setattr(search_commands, "run_scenario", runs)
    return invoke(*arguments)


CAPACITY = ("capacity", "steady", "--target", TARGET, "--gate", "ttft_ms_p50<200", "--workers", 2)


def test_capacity_finds_where_the_gate_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    found = run_with(monkeypatch, runs, *CAPACITY, "--from", 100, "--to", 1000, "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["sessions"] <= 300 < answer["fails_at"]
    assert answer["fails_at"] - answer["sessions"] <= 0.05 * 300
    assert answer["trials"][0]["figures"]["usd_per_completion"] is None
    assert "ours: 100 sessions: passes (ttft_ms_p50" in found.stderr
    seeds = [seed for _name, sessions, seed, _workers in runs.asked if sessions == 100]
    assert len(set(seeds)) == len(seeds) == 2, "each repeat has traffic of its own"
    assert {workers for *_rest, workers in runs.asked} == {2}


@pytest.mark.parametrize(
    ("runs", "code", "said"),
    [
        (Runs(0), 1, "ours: 0 sessions pass, up to 1, which fail"),
        (Runs(10**9), 0, "ours: 400 sessions pass, the most that were asked for"),
        (Runs(10**9, late_above=150), 3, "where this machine could not keep up"),
        (Runs(interrupted_at=200), 130, "ours: interrupted; so far 100 sessions pass"),
    ],
)
def test_capacity_ends_with_the_status_of_its_result(
    monkeypatch: pytest.MonkeyPatch, runs: Runs, code: int, said: str
) -> None:
    found = run_with(monkeypatch, runs, *CAPACITY, "--from", 100, "--to", 400)
    assert found.exit_code == code, found.output
    assert said in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", 2), "--repeats odd"),
        (("--from", 30_000), "--to must be at least --from"),
        (("--target", "ftp://x"), "ftp"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], message: str
) -> None:
    runs = Runs()
    found = run_with(monkeypatch, runs, *CAPACITY, *arguments)
    assert (found.exit_code, message in found.output, runs.asked) == (2, True, [])


def search(
    capacity: int, *, start: int = 100, end: int = 20_000, tolerance: float = 0.05, repeats: int = 3
) -> Capacity:
    """Search on a server that passes up to its capacity."""
    settings = SearchSettings(start, end, tolerance, repeats)
    return find_capacity(settings, lambda sessions, _repeat: Trial(sessions, sessions <= capacity))


@given(st.integers(1, 19_999), st.integers(1, 5_000), st.sampled_from([0.01, 0.05, 0.3]), st.sampled_from([1, 3, 5]))
def test_a_capacity_is_found_within_the_tolerance(capacity: int, start: int, tolerance: float, repeats: int) -> None:
    found = search(capacity, start=start, tolerance=tolerance, repeats=repeats)
    assert found.fails_at is not None
    assert found.sessions <= capacity < found.fails_at <= 20_000
    assert found.fails_at - found.sessions <= max(1, tolerance * found.sessions)
    assert set(Counter(each.sessions for each in found.trials).values()) == {repeats // 2 + 1}


def test_growth_then_halving_within_the_range() -> None:
    found = search(1000, tolerance=0.2, repeats=1)
    assert [each.sessions for each in found.trials] == [100, 200, 400, 800, 1600, 1200, 1000]
    assert (found.sessions, found.fails_at) == (1000, 1200)
    found = search(10**9, start=100, end=500)
    assert (found.sessions, found.fails_at, max(each.sessions for each in found.trials)) == (500, None, 500)
    found = search(0, start=64)
    assert (found.sessions, found.fails_at) == (0, 1), "a server that serves no session"


def test_one_unlucky_run_moves_no_bound_and_repeats_are_numbered() -> None:
    asked: list[tuple[int, int]] = []

    def run_once(sessions: int, repeat: int) -> Trial:
        asked.append((sessions, repeat))
        return Trial(sessions, sessions <= 1000 and (sessions, repeat) != (400, 1))

    found = find_capacity(SearchSettings(100, 20_000, 0.05, 3), run_once)
    assert 950 <= found.sessions <= 1000
    assert [each.is_passed for each in found.trials if each.sessions == 400] == [True, False, True]
    assert asked[:7] == [(100, 0), (100, 1), (200, 0), (200, 1), (400, 0), (400, 1), (400, 2)]
