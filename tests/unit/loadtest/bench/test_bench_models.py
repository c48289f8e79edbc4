"""The figures of `make bench-models`, from the reports of the two commands."""

import json
from typing import Any

import pytest

from draft_model.evaluation.kinds import Kind
from draft_model.evaluation.offline import AcceptanceTally
from draft_model.evaluation.online import DecodeTimes, EngineFigures, IdentityReport, TextDifference, engine_run
from draft_model.evaluation.report import Report, offline_figures
from draft_model.models import AcceptanceCounts
from loadtest.bench.models import figures
from target_model.measure import Speed, TargetFigures, to_json
from target_model.tasks import Mean, Score, Share


def target(bits_per_byte: float, exact: int, loss_more: float | None) -> TargetFigures:
    more = None if loss_more is None else Mean(loss_more, (loss_more - 0.01, loss_more + 0.01))
    lines = Score(passed=Share(exact + 2, 200), exact=Share(exact, 200))
    return TargetFigures("any", 9, 9, Speed(1.0, 2.0, 3.0), Mean(2.0, None), more, bits_per_byte, None, lines)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    tally = AcceptanceTally()
    tally.add([True, True, False, True, True, True, True, False], [Kind.LOGIC] * 8)
    tally.add([True, False, False, True], [Kind.SYNTAX] * 4)
    steps = (DecodeTimes(4.0, 1.5), DecodeTimes(5.0, 1.0))
    run = engine_run(
        {0.0: AcceptanceCounts(10, (8, 4, 2, 1)), 0.8: AcceptanceCounts(10, (2, 0, 0, 0))}, 0.9, 90.0, 100.0, steps
    )
    engine = EngineFigures((run,), (99.0, 101.0), steps)
    pair = Report(offline_figures(2, {0.0: tally}), engine, IdentityReport(164, (TextDifference(3, 5, 0.1),) * 41))
    targets = to_json([target(1.2, 12, None), target(1.25, 10, 0.1)])
    return figures(json.loads(targets), json.loads(pair.to_json()))


def test_the_second_target_is_the_one_that_is_served(found: dict[str, Any]) -> None:
    assert found["held_out_bits_per_byte"] == 1.25
    assert found["single_line_exact_match"] == 0.05
    assert found["single_line_exact_match_interval"] == pytest.approx([0.027, 0.090], abs=1e-3)
    assert found["single_line_pass_at_1"] == 0.06
    assert found["int8_loss_increase"] == 0.1
    assert found["int8_loss_increase_interval"] == pytest.approx([0.09, 0.11])


def test_the_pairs_figures_are_greedy_ones_at_four_drafted_tokens(found: dict[str, Any]) -> None:
    assert found["acceptance_k4_greedy"] == pytest.approx(15 / 40)
    assert found["acceptance_offline"] == pytest.approx(6 / 20), "of five drafts"
    assert found["acceptance_offline_interval"][0] < 6 / 20 < found["acceptance_offline_interval"][1]
    assert (found["mean_accepted_length_k4"], found["predicted_share"]) == (2.5, 8 / 12)
    assert found["foretold_share"] == found["predicted_share"]
    assert (found["greedy_identical_share"], found["identity_tokens"]) == (0.75, 32)
    assert found["speedup_k4_batch_1"] == 0.9
    assert (found["target_step_ms"], found["draft_step_ms"]) == ([4.0, 5.0], [1.5, 1.0])
