"""Figures of hand-made results."""

import io
import math

import pytest
from rich.console import Console

from loadtest.bench.runner.benchmark import for_json
from loadtest.bench.scheduler import PLAIN, SCHEDULER, VLLM_SERVE, Results, figures, load_figures
from loadtest.driving.driver import Run
from loadtest.targets.record import Outcome
from tests.unit.loadtest.typed import result


def run(*results: object, tokens: float = 100.0) -> Run:
    return Run(2.0, results, tokens)  # type: ignore[arg-type]


def test_figures_of_hand_made_results() -> None:
    first = [
        result(0.1, tokens=12),
        result(0.2, tokens=8, outcome=Outcome.HUNG_UP),
        result(0.4),
        result(None, outcome=Outcome.SHED, tokens=0),
        result(None, outcome=Outcome.EMPTY, tokens=1),
    ]
    second = [result(0.1, 0.2, is_pause=False), result(None, 0.2, is_pause=False, outcome=Outcome.SUPERSEDED)]
    found = load_figures([run(*first, tokens=40), run(*second, tokens=60)])
    assert (found["num_requests"], found["num_pauses"], found["num_seen"]) == (7, 5, 2)
    assert (found["offered_per_s"], found["seen_per_s"]) == (7 / 4, 2 / 4)
    assert found["pause_answered_share"] == 2 / 5
    assert (found["pause_ttft_ms_p50"], found["pause_ttft_ms_p95"]) == pytest.approx((200, 380))
    assert found["answered_ttft_ms_p95"] == pytest.approx(370)
    assert found["wasted_token_share"] == 1 - 20 / 100
    assert found["outcomes"] == {"answered": 3, "empty": 1, "superseded": 1, "shed": 1, "hung_up": 1}
    nothing = for_json(load_figures([run(tokens=0)]))
    assert nothing["seen_per_s"] == 0
    assert nothing["pause_ttft_ms_p50"] is nothing["pause_answered_share"] is nothing["wasted_token_share"] is None


def test_the_headline_compares_at_twice_the_capacity() -> None:
    results: Results = {
        load: {
            name: [run(*[result(0.1)] * (seen // part), result(0.3, lag_s=0.002))]
            for name, seen in ((SCHEDULER, 8), (PLAIN, 0), (VLLM_SERVE, 2))
        }
        for load, part in ((2.0, 1), (4.0, 4))
    }
    results[2.0][PLAIN] = [run(result(None, outcome=Outcome.ERROR, error="it broke"))]
    console = Console(file=io.StringIO())
    line = figures(results, console)
    assert math.isnan(line["seen_ratio_2x_to_plain"]), "a ratio to nothing"
    assert line["seen_ratio_2x_to_vllm_serve"] == 4
    assert line["seen_4x_to_peak"] == 0.25
    assert line["pause_answered_share_2x"] == pytest.approx(8 / 9)
    assert line["wasted_token_share_2x"] == pytest.approx(0.2)
    assert line["answered_ttft_p95_ms_2x"] == pytest.approx(220)
    assert line["generator_lag_p99_ms"] == pytest.approx(2)
    assert "plain: requests failed, the first with: it broke" in console.file.getvalue()  # type: ignore[attr-defined]
    assert math.isnan(figures({1.0: results[2.0]}, console)["seen_4x_to_peak"]), "a load that was not run"
