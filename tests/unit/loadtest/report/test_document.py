"""The JSON document and its gates; the differences of two runs that exceed noise."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest.report.compare import Difference, RunDifferences, compare
from loadtest.report.document import (
    SCHEMA,
    Condition,
    DocumentError,
    GateError,
    RunDocument,
    judge,
    parse_gates,
    read_document,
)
from loadtest.report.tables import print_report
from loadtest.stats import RunStats
from tests.unit.loadtest.run_stats import make_document, make_stats


@pytest.fixture
def document() -> RunDocument:
    stats = make_stats(1, num_slices=3, per_slice=5)
    stats.num_workers = 2
    return make_document(stats, gates=("error_rate<1,usd_per_completion<1",), events=[{"kind": "reconnect", "at_s": 1}])


def test_it_fits_its_schema_and_survives_being_written(document: RunDocument, tmp_path: Path) -> None:
    from jsonschema import Draft202012Validator  # takes seconds to import

    schema = json.loads(SCHEMA.read_text())
    checker = Draft202012Validator(schema)
    checker.check_schema(schema)
    checker.validate(document.as_json())
    assert not checker.is_valid(document.as_json() | {"schema_version": 1})
    path = tmp_path / "run.json"
    document.write(path)
    again = read_document(path)
    assert again.as_json() == document.as_json()
    assert math.isnan(again.targets[0].figures["usd_per_completion"])
    assert again.targets[0].invalid_because == ("of 2 workers, number 1 is missing",)
    assert not again.is_valid
    assert [each.is_met for each in again.targets[0].gates] == [True, False]
    assert not again.is_passed
    assert again.events == ((1.0, "reconnect"),)
    assert again.criteria.slo_ttft_ms == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tool": "wrk"}, "tool: Input should be 'loadtest', got 'wrk'"),
        ({"schema_version": 1}, "schema_version: Input should be 2, got 1"),
        ({"gates": ["speed<1"]}, "there is no figure 'speed'"),
        ({"targets": [{"name": "x"}]}, "targets.0.figures: Field required"),
        ({}, "it is not a document of a run"),
        ({"scenario": {"criteria": {"within_ms": "soon"}}}, "it is not a document of a run"),
    ],
)
def test_an_invalid_document_is_refused(
    document: RunDocument, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document.as_json() | change if change else []))
    with pytest.raises(DocumentError) as raised:
        read_document(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    with pytest.raises(DocumentError, match=r"none\.json: "):
        read_document(tmp_path / "none.json")


def test_a_gate_is_conditions_with_commas_between_and_a_figure_has_two_spellings() -> None:
    expected = Condition("pause_ttft_ms_p95", "<", 200.0), Condition("error_rate", "<=", 0.001)
    for figure in ("pause_ttft_ms_p95", "pause_ttft_p95_ms"):
        assert parse_gates([f"{figure}<200, error_rate <= 0.001"]) == expected
    assert len(parse_gates(["seen_per_s>1", "sessions==10,sessions_lost==0"])) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pause_ttft_p95<200", "there is no figure 'pause_ttft_p95'; the nearest is 'pause_ttft_ms_p95'"),
        ("error_rate<", "a gate is FIGURE, one of <= >= == < >, and a number, got 'error_rate<'"),
        ("error_rate<few", "error_rate: 'few' is not a number"),
        ("error_rate<nan", "error_rate: 'nan' is not a number"),
    ],
)
def test_the_error_of_a_bad_gate_names_the_fault(text: str, message: str) -> None:
    with pytest.raises(GateError) as raised:
        parse_gates([text])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("operator", "met", "missed"), [("<", 1.0, 2.0), ("<=", 2.0, 2.1), (">", 3.0, 2.0), (">=", 2.0, 1.9), ("==", 2, 1)]
)
def test_each_operator_and_a_figure_without_a_value(operator: str, met: float, missed: float) -> None:
    conditions = parse_gates([f"error_rate{operator}2"])
    for value, is_met in ((met, True), (missed, False)):
        assert judge(conditions, {"error_rate": value})[0].is_met is is_met
    for figures in ({}, {"error_rate": math.nan}):
        verdict = judge(conditions, figures)[0]
        assert (verdict.is_met, verdict.said) == (False, "has no value in this run")


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


def test_figures_without_slices_and_runs_of_too_few_have_no_verdict() -> None:
    named = by_name(differences(make_stats(1), make_stats(2, ttft_ms=300.0)))
    for name in ("total_ms_p95", "wasted_token_share", "accepted_share"):
        assert named[name].change == "noise unknown"
    assert "usd_per_completion" not in named
    found = differences(make_stats(1, num_slices=7), make_stats(2, num_slices=30, ttft_ms=500))
    assert not found.is_paired, "runs of different length are never paired"
    assert {each.change for each in found.differences} == {"noise unknown"}
    assert found.warnings == ("too few slices to tell noise: 7, at least 8 are needed",)


def test_conditions_that_spoil_a_comparison_are_warned_of() -> None:
    late = make_stats(1)
    late.num_workers = 2
    assert differences(make_stats(1), make_stats(2)).warnings == ()
    assert differences(make_stats(1), late, is_paired=False, sessions=30).warnings == (
        "the runs are of different scenarios: they differ in sessions",
        "B ours is invalid: of 2 workers, number 1 is missing",
    )
    assert "different traces" in differences(make_stats(1), make_stats(2), is_paired=False).warnings[0]


def test_an_invalid_run_says_so_first_and_in_red_and_markup_in_a_name_is_text() -> None:
    stats = make_stats(1, target="[bold]x[/nothing]", regions=("[red]",))
    stats.num_workers = 2
    shown = io.StringIO()
    console = Console(file=shown, width=200, force_terminal=True, color_system="standard")
    print_report(make_document(stats, name="[/b]"), console)
    first = shown.getvalue().splitlines()[0]
    assert "[bold]x[/nothing]: INVALID, of 2 workers, number 1 is missing" in first
    assert "\x1b[1;31m" in first
    assert "[/b]: 20 sessions" in shown.getvalue()
