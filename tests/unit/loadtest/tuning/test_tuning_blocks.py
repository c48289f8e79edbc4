"""Sums over a block's answers, the order of blocks, and fits of sweeps that were computed from known parameters."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from loadtest.traffic.sections import CriteriaSettings
from loadtest.tuning.blocks import Answer, Block, Blocks, Variant
from loadtest.tuning.fit import AcceptanceFit, StepTimeFit, fit, fit_acceptance, misfit
from loadtest.tuning.tuner import turns
from tests.unit.loadtest.sweeps import CONCURRENCIES, DRAFT, KS, PAYS_AT_SMALL_BATCHES, make_counted_sweep, modelled

CRITERIA = CriteriaSettings(within_ms=250, before_next_key_ms=200)
VARIANT = Variant.fixed(2)


def block(*answers: Answer, window_s: float = 1.0) -> Block:
    return Block.of(VARIANT, 1, 0, answers, window_s, CRITERIA)


def test_answers_that_end_after_the_window_count_by_their_share_in_it() -> None:
    found = block(Answer(0.0, 0.5, 0.1, num_tokens=10), Answer(0.5, 2.5, 0.1, num_tokens=20))
    assert found.goodput == pytest.approx(10 + 20 * 0.25)
    assert found.num_answers == 2
    assert found.num_seen == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("ttft_s", "stands_s", "is_seen"),
    [(0.1, 0.301, True), (0.1, 0.299, False), (0.25, 9.0, True), (0.26, 9.0, False), (None, 9.0, False)],
)
def test_seen_has_the_meaning_of_a_load_test(ttft_s: float | None, stands_s: float, is_seen: bool) -> None:
    assert Answer(0.0, 1.0, ttft_s, stands_s).is_seen(CRITERIA) is is_seen


def test_a_block_sums_its_answers_up() -> None:
    answer = Answer(0.0, 1.0, 0.1, num_tokens=24, num_drafted=28, num_accepted=9, decode_s=0.7, engine_s=0.8)
    shed = Answer(0.5, 0.6, None, shed_reason="overload")
    found = block(answer, replace(answer, engine_s=0.7), shed)
    assert answer.num_steps == 14
    assert found.decode_s / found.num_steps == pytest.approx(0.05)
    assert (found.num_answers, found.shed) == (2, ("overload",))
    assert found.total_ms == pytest.approx(1000)
    assert found.mean_batch == pytest.approx(1.5), "generations in the engine, over the window"
    assert block().goodput == 0


def test_every_variant_meets_every_concurrency_in_every_round_and_each_order_comes_again_reversed() -> None:
    variants = [Variant.fixed(k) for k in range(5)]
    plan = list(turns(variants, (1, 4), 6, "a"))
    assert Counter((turn.round, turn.concurrency) for turn in plan) == Counter((r, c) for r in range(6) for c in (1, 4))
    assert all(sorted(turn.variants, key=lambda each: each.k or 0) == variants for turn in plan)
    orders = {(turn.round, turn.concurrency): turn.variants for turn in plan}
    for number in (0, 2, 4):
        for concurrency in (1, 4):
            assert orders[number, concurrency] == orders[number + 1, concurrency][::-1]
    assert orders[0, 1] != orders[2, 1]
    assert list(turns(variants, (1, 4), 6, "a")) == plan != list(turns(variants, (1, 4), 6, "b"))


def test_blocks_come_by_round_and_variants_by_k() -> None:
    made = [Block(Variant.fixed(k), 1, number, 1.0) for number in (1, 0) for k in (3, 0)]
    beside = Block(Variant("no draft"), 1, 0, 1.0)
    found = Blocks((*made, beside))
    assert [each.name for each in found.variants] == ["K = 0", "K = 3", "no draft"]
    assert [each.round for each in found.of(1, "K = 3")] == [0, 1]
    assert found.max_num_speculative_tokens == 3


def test_exact_figures_give_the_parameters_back() -> None:
    sweep = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)
    found = fit(sweep)
    assert found.acceptance.survival == pytest.approx(DRAFT.survival, abs=1e-3)
    assert found.times.terms == pytest.approx(PAYS_AT_SMALL_BATCHES.terms, rel=0.01)
    assert misfit(sweep, found) < 0.01


def test_noisy_figures_come_near_them_and_so_do_predictions() -> None:
    exact, truth = fit(make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)), modelled(PAYS_AT_SMALL_BATCHES)
    noisy = fit(make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT, noise=0.05))
    for concurrency in CONCURRENCIES:
        for k in KS:
            assert exact.goodput(concurrency, k) == pytest.approx(truth(concurrency, k), rel=0.02)
            step_s = PAYS_AT_SMALL_BATCHES.seconds(concurrency, k)
            assert noisy.times.seconds(concurrency, k) == pytest.approx(step_s, rel=0.1)


def test_acceptance_falls_with_the_position_despite_noise() -> None:
    chance = np.random.default_rng(3)
    sweep = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)
    noisy = Blocks(tuple(replace(b, num_accepted=int(b.num_accepted * chance.uniform(0.8, 1.2))) for b in sweep.all))
    survival = fit_acceptance(noisy).survival
    assert all(later <= earlier for earlier, later in itertools.pairwise(survival))
    assert 0 <= survival[-1] <= survival[0] <= 1


def test_length_rates_by_position_and_linear_step_times() -> None:
    acceptance = AcceptanceFit((0.8, 0.6, 0.3))
    assert acceptance.length(0) == 1
    assert acceptance.length(2) == pytest.approx(2.4)
    assert acceptance.by_position == pytest.approx((0.8, 0.75, 0.5))
    assert AcceptanceFit((0.0, 0.0)).by_position == (0.0, 0.0)
    assert [StepTimeFit((1.0, 2.0, 3.0, 4.0, 5.0)).seconds(2, k) for k in (0, 3)] == [5, 1 + 4 + 3 + 12 + 30]


def test_nothing_drafted_is_nothing_accepted() -> None:
    sweep = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)
    only_off = Blocks(tuple(each for each in sweep.all if each.variant == Variant.fixed(0)))
    found = fit(only_off)
    assert found.acceptance.survival == ()
    assert found.times.seconds(4, 0) == pytest.approx(PAYS_AT_SMALL_BATCHES.seconds(4, 0))
