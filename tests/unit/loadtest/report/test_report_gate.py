"""Gates: their syntax and their conditions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.report.document import Condition, GateError, figure_named, is_passed, judge, parse_gate, parse_gates
from loadtest.report.figures import FIGURES


def test_a_gate_is_conditions_with_commas_between() -> None:
    assert parse_gate("pause_ttft_ms_p95<200, error_rate <= 0.001") == (
        Condition("pause_ttft_ms_p95", "<", 200.0),
        Condition("error_rate", "<=", 0.001),
    )
    assert len(parse_gates(["seen_per_s>1", "sessions==10,sessions_lost==0"])) == 3


@pytest.mark.parametrize("name", ["pause_ttft_p95_ms", "pause_ttft_ms_p95"])
def test_both_spellings_name_the_same_figure(name: str) -> None:
    assert figure_named(name) == "pause_ttft_ms_p95"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pause_ttft_p95<200", "there is no figure 'pause_ttft_p95'; the nearest is 'pause_ttft_ms_p95'"),
        ("eror_rate<1", "there is no figure 'eror_rate'; the nearest is 'error_rate'"),
        ("error_rate", "a gate is FIGURE, one of <= >= == < >, and a number, got 'error_rate'"),
        ("error_rate<", "a gate is FIGURE"),
        ("error_rate=1", "a gate is FIGURE"),
        ("error_rate<<1", "a gate is FIGURE"),
        ("error_rate<1,", "a gate is FIGURE"),
        ("", "a gate is FIGURE"),
        ("error_rate<few", "error_rate: 'few' is not a number"),
        ("error_rate<nan", "error_rate: 'nan' is not a number"),
        ("error_rate<inf", "error_rate: 'inf' is not a number"),
    ],
)
def test_the_error_of_a_bad_gate_names_the_fault(text: str, message: str) -> None:
    with pytest.raises(GateError) as raised:
        parse_gate(text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("gate", "met", "missed"),
    [
        ("error_rate<2", 1.0, 2.0),
        ("error_rate<=2", 2.0, 2.1),
        ("error_rate>2", 3.0, 2.0),
        ("error_rate>=2", 2.0, 1.9),
        ("error_rate==2", 2.0, 1.0),
    ],
)
def test_each_operator(gate: str, met: float, missed: float) -> None:
    conditions = parse_gate(gate)
    assert is_passed(conditions, {"error_rate": met})
    assert not is_passed(conditions, {"error_rate": missed})


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "=="])
@pytest.mark.parametrize("found", [{}, {"error_rate": math.nan}])
def test_a_figure_without_a_value_fails_and_says_so(operator: str, found: dict[str, float]) -> None:
    (verdict,) = judge(parse_gate(f"error_rate{operator}1"), found)
    assert not verdict.is_met
    assert verdict.said == "has no value in this run"


def test_one_miss_fails_the_gate() -> None:
    conditions = parse_gate("error_rate<1,seen_per_s>5")
    assert is_passed(conditions, {"error_rate": 0.0, "seen_per_s": 6.0})
    assert not is_passed(conditions, {"error_rate": 0.0, "seen_per_s": 5.0})
    assert [each.is_met for each in judge(conditions, {"error_rate": 0.0, "seen_per_s": 5.0})] == [True, False]


@given(st.sampled_from(sorted(FIGURES)), st.sampled_from(["<", "<=", ">", ">=", "=="]), st.integers(-(10**6), 10**6))
def test_a_condition_is_read_as_it_is_written(figure: str, operator: str, thousandths: int) -> None:
    condition = Condition(figure, operator, thousandths / 1000)
    assert parse_gate(str(condition)) == (condition,)
