"""The best K on a GPU by a roofline, against cases by hand."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from draft_model.commands.evaluate import plan_k
from draft_model.core import PipelineError
from draft_model.evaluation.gpu_plan import ServedModel, best_lengths

TARGET = ServedModel(7e9, 50_000, is_int8=True, around_s=0.001)
DRAFT = ServedModel(0.5e9, 10_000, is_int8=False, around_s=0.0002)


def test_a_pass_takes_the_slower_of_weights_and_operations_by_hand() -> None:
    one = TARGET.pass_s("h100", 1, 1, 1000, 0.5)
    assert one == pytest.approx((7e9 + 50e6) / 3.35e12 / 0.5 + 0.001)
    many = TARGET.pass_s("h100", 256, 256 * 5, 1000, 0.5)
    assert many == pytest.approx((2 * 7e9 * 1280 / (2 * 989e12) + 256 * 50e6 / 3.35e12) / 0.5 + 0.001)
    assert DRAFT.pass_s("h100", 1, 1, 0, 1.0) == pytest.approx(1e9 / 3.35e12 + 0.0002)


def test_the_speed_up_is_tokens_a_step_over_time_a_step_by_hand() -> None:
    (first, *_) = best_lengths([1.5], TARGET, DRAFT, "h100", context_tokens=1000, efficiency=0.5)
    alone = TARGET.pass_s("h100", 1, 1, 1000, 0.5)
    both = TARGET.pass_s("h100", 1, 2, 1000, 0.5) + DRAFT.pass_s("h100", 1, 1, 1000, 0.5)
    assert (first.batch_size, first.num_speculative_tokens) == (1, 1)
    assert first.speedup == pytest.approx(1.5 / both * alone)
    assert first.tokens_per_s == pytest.approx(1.5 / both)


def test_k_falls_with_the_batch_size_and_is_0_where_drafts_cost_more_than_they_give() -> None:
    how = {"context_tokens": 1000, "efficiency": 0.5}
    cached = replace(TARGET, kv_bytes_per_token=10_000)
    lengths = [row.num_speculative_tokens for row in best_lengths([1.8, 2.4, 2.9], cached, DRAFT, "h100", **how)]
    assert lengths[0] == 3
    assert lengths[-1] < 3
    assert lengths == sorted(lengths, reverse=True)
    assert {row.num_speculative_tokens for row in best_lengths([1.05, 1.05], TARGET, TARGET, "l4", **how)} == {0}


def test_batches_whose_cache_does_not_fit_into_the_memory_are_left_out() -> None:
    large = ServedModel(13e9, 819_200, is_int8=True, around_s=0.001)  # 0.84 GB of cache for each request
    rows = best_lengths([1.5], large, DRAFT, "h100", context_tokens=1024, efficiency=0.5)
    assert [row.batch_size for row in rows] == [1, 4, 8, 16, 32, 64]
    assert best_lengths([1.5], large, DRAFT, "a10", context_tokens=1024, efficiency=0.5)[-1].batch_size == 8


def test_impossible_means_and_gpus_without_figures_or_memory_are_refused() -> None:
    for means, said in (([2.5], "K = 1 gives 1 to 2 tokens a step, not 2.5"), ([1.5, 0.9], "1 to 3 .* not 0.9")):
        with pytest.raises(PipelineError, match=said):
            best_lengths(means, TARGET, DRAFT, "h100", context_tokens=1, efficiency=1.0)
    with pytest.raises(PipelineError, match="not nan"):
        best_lengths([float("nan")], TARGET, DRAFT, "h100", context_tokens=1, efficiency=1.0)
    with pytest.raises(PipelineError, match="no figures for the GPU 'abacus'"):
        best_lengths([1.5], TARGET, DRAFT, "abacus", context_tokens=1, efficiency=1.0)
    large = ServedModel(70e9, 0, is_int8=True, around_s=0.0)
    with pytest.raises(PipelineError, match="one request takes 66 GiB, of 22 that a10 has"):
        best_lengths([1.5], large, DRAFT, "a10", context_tokens=1, efficiency=1.0)


def test_the_command_prints_a_table_or_json() -> None:
    command = ["--tokens-a-step", "1.8,2.4", "--gpu", "h100"]
    table = CliRunner().invoke(plan_k, command).stdout.splitlines()
    rows = json.loads(CliRunner().invoke(plan_k, [*command, "--json"]).stdout)
    assert table[0].startswith("| requests at once | K |")
    assert len(table) - 2 == len(rows) == 6
    assert table[2].startswith(f"| 1 | {rows[0]['num_speculative_tokens']} |")
    refused = CliRunner().invoke(plan_k, ["--tokens-a-step", "many", "--gpu", "h100"])
    assert "'many' is not a list of numbers" in refused.stderr
