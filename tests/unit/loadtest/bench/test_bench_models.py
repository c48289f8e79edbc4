"""The figures of `make bench-models`, from the reports of the two commands."""

import json

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


def test_the_figures_are_those_of_the_served_target_and_of_four_drafted_tokens() -> None:
    tally = AcceptanceTally()
    tally.add([True, True, False, True, True, True, True, False], [Kind.LOGIC] * 8)
    tally.add([True, False, False, True], [Kind.SYNTAX] * 4)
    steps = (DecodeTimes(4.0, 1.5), DecodeTimes(5.0, 1.0))
    counts = {0.0: AcceptanceCounts(10, (8, 4, 2, 1)), 0.8: AcceptanceCounts(10, (2, 0, 0, 0))}
    engine = EngineFigures((engine_run(counts, 0.9, 90.0, 100.0, steps),), (99.0, 101.0), steps)
    pair = Report(offline_figures(2, {0.0: tally}), engine, IdentityReport(164, (TextDifference(3, 5, 0.1),) * 41))
    targets = to_json([target(1.2, 12, None), target(1.25, 10, 0.1)])
    found = figures(json.loads(targets), json.loads(pair.to_json()))
    of_target = {"held_out_bits_per_byte": 1.25, "single_line_exact_match": 0.05, "single_line_pass_at_1": 0.06}
    of_pair = {"acceptance_k4_greedy": 15 / 40, "acceptance_offline": 6 / 20, "mean_accepted_length_k4": 2.5}
    of_pair |= {"predicted_share": 8 / 12, "greedy_identical_share": 0.75, "speedup_k4_batch_1": 0.9}
    expected = of_target | of_pair | {"int8_loss_increase": 0.1, "identity_tokens": 32}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["int8_loss_increase_interval"] == pytest.approx([0.09, 0.11])
    assert found["acceptance_offline_interval"][0] < 6 / 20 < found["acceptance_offline_interval"][1]
    assert (found["target_step_ms"], found["draft_step_ms"]) == ([4.0, 5.0], [1.5, 1.0])
