"""Fits of sweeps that were computed from known parameters."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from loadtest.tuning.blocks import Blocks, Variant
from loadtest.tuning.fit import AcceptanceFit, StepTimeFit, fit, fit_acceptance
from loadtest.tuning.verdict import misfit
from tests.unit.loadtest.sweeps import CONCURRENCIES, DRAFT, KS, PAYS_AT_SMALL_BATCHES, make_counted_sweep, modelled


def test_exact_figures_give_the_parameters_back() -> None:
    sweep = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)
    found = fit(sweep)
    assert found.acceptance.survival == pytest.approx(DRAFT.survival, abs=1e-3)
    assert found.times.terms == pytest.approx(PAYS_AT_SMALL_BATCHES.terms, rel=0.01)
    assert misfit(sweep, found) < 0.01


def test_noisy_figures_come_near_them() -> None:
    found = fit(make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT, noise=0.05))
    for batch in CONCURRENCIES:
        for k in KS:
            assert found.times.seconds(batch, k) == pytest.approx(PAYS_AT_SMALL_BATCHES.seconds(batch, k), rel=0.1)


def test_predictions_are_near_the_measurements() -> None:
    sweep = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)
    found, truth = fit(sweep), modelled(PAYS_AT_SMALL_BATCHES)
    for concurrency in CONCURRENCIES:
        for k in KS:
            assert found.goodput(concurrency, k) == pytest.approx(truth(concurrency, k), rel=0.02)


def test_acceptance_falls_with_the_position_despite_noise() -> None:
    chance = np.random.default_rng(3)
    sweep = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)
    noisy = Blocks(tuple(replace(b, num_accepted=int(b.num_accepted * chance.uniform(0.8, 1.2))) for b in sweep.all))
    survival = fit_acceptance(noisy).survival
    assert all(later <= earlier for earlier, later in itertools.pairwise(survival))
    assert 0 <= survival[-1] <= survival[0] <= 1


def test_length_and_rates_by_position() -> None:
    acceptance = AcceptanceFit((0.8, 0.6, 0.3))
    assert acceptance.length(0) == 1
    assert acceptance.length(2) == pytest.approx(2.4)
    assert acceptance.by_position == pytest.approx((0.8, 0.75, 0.5))
    assert AcceptanceFit((0.0, 0.0)).by_position == (0.0, 0.0)


def test_nothing_drafted_is_nothing_accepted() -> None:
    sweep = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT)
    only_off = Blocks(tuple(each for each in sweep.all if each.variant == Variant.fixed(0)))
    found = fit(only_off)
    assert found.acceptance.survival == ()
    assert found.times.seconds(4, 0) == pytest.approx(PAYS_AT_SMALL_BATCHES.seconds(4, 0))


def test_step_times_are_linear() -> None:
    times = StepTimeFit((1.0, 2.0, 3.0, 4.0, 5.0))
    assert times.seconds(2, 0) == 5
    assert times.seconds(2, 3) == 1 + 4 + 3 + 12 + 30
