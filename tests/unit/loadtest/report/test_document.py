"""The JSON document keeps everything and fits its schema; gates are read, judged, and refused with the reason."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from loadtest.report.figures import FIGURES
from tests.unit.loadtest.run_stats import make_document, make_stats

OPERATORS = ("<", "<=", ">", ">=", "==")


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
    assert set(schema["required"]) == set(document.as_json())
    assert set(schema["$defs"]["target"]["required"]) == set(document.as_json()["targets"][0])
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
        ("error_rate", "a gate is FIGURE, one of <= >= == < >, and a number, got 'error_rate'"),
        ("error_rate<", "a gate is FIGURE"),
        ("error_rate<<1", "a gate is FIGURE"),
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


@given(st.sampled_from(sorted(FIGURES)), st.sampled_from(OPERATORS), st.integers(-(10**6), 10**6))
def test_a_condition_is_read_as_it_is_written(figure: str, operator: str, thousandths: int) -> None:
    condition = Condition(figure, operator, thousandths / 1000)
    assert parse_gates([str(condition)]) == (condition,)
