"""Figures of hand-made results."""

import math

import pytest

from loadtest.bench.runner.figures import for_json
from loadtest.bench.scheduler import (
    PLAIN,
    SCHEDULER,
    VLLM_SERVE,
    Results,
    first_errors,
    headline,
    is_seen,
    load_figures,
)
from loadtest.driving.driver import Run
from loadtest.targets.record import Outcome
from tests.unit.loadtest.typed import result


def run(*results: object, tokens: float = 100.0) -> Run:
    return Run(2.0, results, tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ttft_s", "wait_s", "expected"),
    [
        (0.125, 1.0, True),
        (0.25, 1.0, True),
        (0.2501, 1.0, False),
        (0.125, 0.3251, True),
        (0.125, 0.3249, False),
        (0.125, 0.1, False),
        (None, 1.0, False),
    ],
)
def test_seen_is_in_time_and_before_the_next_key(ttft_s: float | None, wait_s: float, expected: bool) -> None:
    assert is_seen(result(ttft_s, wait_s)) is expected


@pytest.mark.parametrize("outcome", [Outcome.SUPERSEDED, Outcome.HUNG_UP, Outcome.UNANSWERED, Outcome.ANSWERED])
def test_a_completion_counts_as_seen_for_any_outcome(outcome: Outcome) -> None:
    assert is_seen(result(0.1, outcome=outcome))


def test_figures_of_hand_made_results() -> None:
    found = load_figures(
        [
            run(
                result(0.1, tokens=12),
                result(0.2, tokens=8, outcome=Outcome.HUNG_UP),
                result(0.4),
                result(None, outcome=Outcome.SHED, tokens=0),
                result(None, outcome=Outcome.EMPTY, tokens=1),
                tokens=40,
            ),
            run(
                result(0.1, 0.2, is_pause=False),
                result(None, 0.2, is_pause=False, outcome=Outcome.SUPERSEDED, lag_s=0.01),
                tokens=60,
            ),
        ],
    )
    assert (found["num_requests"], found["num_pauses"], found["num_seen"]) == (7, 5, 2)
    assert found["offered_per_s"] == 7 / 4
    assert found["seen_per_s"] == 2 / 4
    assert found["seen_per_s_by_round"] == [1.0, 0.0]
    assert found["pause_answered_share"] == 2 / 5
    assert found["pause_without_text_share"] == 2 / 5
    assert found["pause_empty_share"] == 1 / 5
    assert found["pause_ttft_ms_p50"] == pytest.approx(200)
    assert found["pause_ttft_ms_p95"] == pytest.approx(380)
    assert found["answered_ttft_ms_p95"] == pytest.approx(370)
    assert found["shed_share"] == found["superseded_share"] == found["hung_up_share"] == 1 / 7
    assert found["wasted_token_share"] == 1 - 20 / 100
    assert found["outcomes"] == {"answered": 3, "empty": 1, "superseded": 1, "shed": 1, "hung_up": 1}
    assert found["generator_lag_ms_p99"] == pytest.approx(9.4)


def test_nothing_to_count_is_null() -> None:
    found = for_json(load_figures([run(tokens=0)]))
    assert found["seen_per_s"] == 0
    for name in ("pause_ttft_ms_p50", "pause_answered_share", "wasted_token_share", "generator_lag_ms_p99"):
        assert found[name] is None


def results(scheduler: int, plain: int, serve: int) -> Results:
    """Return results at two loads in which so many were seen at the first one; a quarter of that at the second."""
    return {
        load: {
            name: [run(*[result(0.1)] * (seen // stats), result(0.3, lag_s=0.002))]
            for name, seen in ((SCHEDULER, scheduler), (PLAIN, plain), (VLLM_SERVE, serve))
        }
        for load, stats in ((2.0, 1), (4.0, 4))
    }


def headline_of(results: Results) -> dict[str, float]:
    by_load = {load: {name: load_figures(runs) for name, runs in own.items()} for load, own in results.items()}
    return headline(by_load, results)


def test_the_headline_compares_at_twice_the_capacity() -> None:
    line = headline_of(results(8, 4, 2))
    assert line["seen_ratio_2x_to_plain"] == 2
    assert line["seen_ratio_2x_to_vllm_serve"] == 4
    assert line["seen_4x_to_peak"] == 0.25
    assert line["pause_answered_share_2x"] == pytest.approx(8 / 9)
    assert line["wasted_token_share_2x"] == pytest.approx(0.2)
    assert line["answered_ttft_p95_ms_2x"] == pytest.approx(220)
    assert line["generator_lag_p99_ms"] == pytest.approx(2)


def test_a_ratio_to_nothing_and_of_a_load_that_was_not_run_is_null() -> None:
    found = results(8, 0, 2)
    line = headline_of(found)
    assert math.isnan(line["seen_ratio_2x_to_plain"])
    assert line["seen_ratio_2x_to_vllm_serve"] == 4
    known = headline_of({1.0: found[2.0]})
    assert {name for name, value in known.items() if not math.isnan(value)} == {"generator_lag_p99_ms"}


def test_the_first_error_of_each_target_is_reported() -> None:
    found: Results = {1.0: {PLAIN: [run(result(), result(None, outcome=Outcome.ERROR, error="it broke"))]}}
    assert first_errors(found) == {PLAIN: "it broke"}
