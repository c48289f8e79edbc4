"""The figures of `make bench-models`, from what the two commands write."""

from typing import Any

import pytest

from loadtest.bench.models import figures


def target(bits_per_byte: float, exact: int, loss_more: float | None) -> dict[str, Any]:
    return {
        "name": "any",
        "loss_more": loss_more and {"value": loss_more, "interval": [loss_more - 0.01, loss_more + 0.01]},
        "bits_per_byte": bits_per_byte,
        "lines": {
            "exact": {"hits": exact, "total": 200, "interval": [0.02, 0.09]},
            "passed": {"hits": exact + 2, "total": 200},
        },
    }


PAIR = {
    "offline": {
        "at_temperature": {
            "0.0": {
                "agreement": 0.7,
                "acceptance_by_length": {"1": 0.7, "4": 0.45},
                "acceptance_intervals": {"1": [0.6, 0.8], "4": [0.4, 0.5]},
            }
        }
    },
    "engine": {
        "runs": [
            {
                "num_speculative_tokens": 4,
                "acceptance": {"0.0": 0.46, "0.8": 0.2},
                "mean_accepted_length": {"0.0": 2.84, "0.8": 1.8},
                "speedup": 0.9,
            }
        ],
        "target_step_ms": 4.0,
        "draft_step_ms": 1.5,
    },
    "identity": {"share": 0.97, "num_prompts": 164, "differences": []},
}


def test_the_second_target_is_the_one_that_is_served() -> None:
    found = figures([target(1.2, 12, None), target(1.25, 10, 0.1)], PAIR)
    assert found["held_out_bits_per_byte"] == 1.25
    assert found["single_line_exact_match"] == 0.05
    assert found["single_line_exact_match_interval"] == [0.02, 0.09]
    assert found["single_line_pass_at_1"] == 0.06
    assert found["int8_loss_increase"] == 0.1
    assert found["int8_loss_increase_interval"] == pytest.approx([0.09, 0.11])


def test_the_pairs_figures_are_greedy_ones_at_four_drafted_tokens() -> None:
    found = figures([target(1.2, 12, None), target(1.25, 10, 0.1)], PAIR)
    assert (found["acceptance_k4_greedy"], found["acceptance_offline"]) == (0.46, 0.45)
    assert found["acceptance_offline_interval"] == [0.4, 0.5]
    assert (found["mean_accepted_length_k4"], found["foretold_share"]) == (2.84, 0.7)
    assert (found["greedy_identical_share"], found["speedup_k4_batch_1"]) == (0.97, 0.9)
    assert (found["target_step_ms"], found["draft_step_ms"]) == (4.0, 1.5)
