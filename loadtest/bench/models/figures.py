"""The models benchmark's figures, from the reports that the two `evaluate` commands write."""

from collections.abc import Mapping, Sequence
from typing import Any

SPECULATE = 4
IDENTITY_TOKENS = 32


def figures(targets: Sequence[Mapping[str, Any]], pair: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of merit from the two reports; bfloat16 is the first target, INT8 the second.

    Losses are nats a token, shares 0 to 1, times milliseconds, steps' of two turns. `acceptance_*` is accepted over
    drafted tokens; `greedy_identical_share` is of completions of `identity_tokens` tokens.
    """
    _bf16, int8 = targets
    run, offline = pair["engine"]["runs"][0], pair["offline"]["at_temperature"]["0.0"]
    return {
        "held_out_bits_per_byte": int8["bits_per_byte"],
        "single_line_exact_match": _share(int8["lines"]["exact"]),
        "single_line_exact_match_interval": int8["lines"]["exact"]["interval"],
        "single_line_pass_at_1": _share(int8["lines"]["passed"]),
        "acceptance_k4_greedy": run["acceptance"]["0.0"],
        "acceptance_offline": offline["acceptance_by_length"][str(SPECULATE)],
        "acceptance_offline_interval": offline["acceptance_intervals"][str(SPECULATE)],
        "predicted_share": offline["agreement"],
        "foretold_share": offline["agreement"],  # the earlier name, until 0.2
        "mean_accepted_length_k4": run["mean_accepted_length"]["0.0"],
        "int8_loss_increase": int8["loss_more"]["value"],
        "int8_loss_increase_interval": int8["loss_more"]["interval"],
        "greedy_identical_share": pair["identity"]["share"],
        "identity_tokens": IDENTITY_TOKENS,
        "speedup_k4_batch_1": run["speedup"],
        "target_step_ms": [step["target_ms"] for step in pair["engine"]["steps"]],
        "draft_step_ms": [step["draft_ms"] for step in pair["engine"]["steps"]],
    }


def _share(counted: Mapping[str, Any]) -> float:
    share: float = counted["hits"] / counted["total"]
    return share
