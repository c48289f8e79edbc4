"""The choice of K for each batch size, on sweeps of known models."""

import numpy as np
import pytest

from loadtest.tuning.blocks import Variant
from loadtest.tuning.choice import Choice, best_fixed, choose, crossover, table_of
from loadtest.tuning.fit import AcceptanceFit, StepTimeFit
from loadtest.tuning.statistics import Estimate, mean_of_rounds
from tests.unit.loadtest.sweeps import (
    CONCURRENCIES,
    KS,
    NEVER_PAYS,
    PAYS_AT_SMALL_BATCHES,
    make_sweep,
    modelled,
)


def choice(concurrency: int, k: int) -> Choice:
    return Choice(concurrency, k, k, Estimate.exact(1.0), Estimate.exact(0.0), 10.0)


@pytest.mark.parametrize("drift", [0.0, 1.5], ids=["steady", "four times slower at the end"])
def test_it_pays_at_small_batches_and_loses_at_large_ones(drift: float) -> None:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    truth = {each: max(KS, key=lambda k, at=each: goodput(at, k)) for each in CONCURRENCIES}
    assert truth[1] > 2
    assert truth[64] == 0
    found = choose(make_sweep(goodput, noise=0.01, drift=drift))
    assert {each.concurrency: each.k for each in found} == truth
    table = table_of(found)
    assert (table[0][0], table[0][2]) == (1, truth[1])
    assert table[-1][1:] == (64, 0)
    assert crossover(table) == table[-1][0] > 4


def test_the_saving_is_reported_with_its_interval() -> None:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    first = choose(make_sweep(goodput, noise=0.01, seed=2))[0]
    saved_ms = 1000 / goodput(1, 0) - 1000 / goodput(1, first.k)
    assert first.saved_ms.low < saved_ms < first.saved_ms.high
    assert first.gain.low < goodput(1, first.k) / goodput(1, 0) < first.gain.high
    assert first.gain.low > 1


def test_if_no_k_pays_every_batch_size_gets_0() -> None:
    found = choose(make_sweep(modelled(NEVER_PAYS), noise=0.02))
    table = table_of(found)
    assert table == ((1, 64, 0),)
    assert crossover(table) == 1
    assert all(each.gain.high < 1 for each in found)


def test_noise_alone_moves_nothing() -> None:
    """Of five Ks that are all the same one looks best in each sweep, at each concurrency."""
    taken = [
        each.k
        for seed in range(40)
        for each in choose(make_sweep(lambda concurrency, _k: 100.0 * concurrency, noise=0.05, seed=seed))
    ]
    assert len(taken) == 160
    assert sum(k > 0 for k in taken) <= 8


def test_high_acceptance_is_no_reason_to_draft_at_a_loss() -> None:
    nearly_all, dear = AcceptanceFit((0.98, 0.96, 0.94, 0.92)), StepTimeFit((1e-3, 1e-4, 20e-3, 5e-3, 0.0))
    assert {each.k for each in choose(make_sweep(modelled(dear, nearly_all), noise=0.01))} == {0}


def test_it_pays_up_to_the_largest_batch() -> None:
    free = StepTimeFit((10e-3, 1e-4, 0.0, 0.0, 0.0))
    table = table_of(choose(make_sweep(modelled(free), noise=0.01)))
    assert table == ((1, 64, max(KS)),)
    assert crossover(table) is None


def test_a_sweep_of_0_alone_chooses_0() -> None:
    sweep = make_sweep(modelled(NEVER_PAYS), variants=[Variant.fixed(0)])
    assert [each.k for each in choose(sweep)] == [0, 0, 0, 0]
    assert best_fixed(sweep) == Variant.fixed(0)


@pytest.mark.parametrize(
    ("ks", "table"),
    [
        ((3, 2, 1, 0), ((1, 2, 3), (3, 8, 2), (9, 32, 1), (33, 64, 0))),
        ((3, 3, 0, 0), ((1, 8, 3), (9, 64, 0))),
        ((0, 0, 0, 0), ((1, 64, 0),)),
        ((0, 2, 0, 0), ((1, 2, 0), (3, 8, 2), (9, 64, 0))),
    ],
)
def test_rows_follow_one_another_and_meet_halfway(ks: tuple[int, ...], table: tuple[tuple[int, int, int], ...]) -> None:
    assert table_of([choice(at, k) for at, k in zip(CONCURRENCIES, ks, strict=True)]) == table


def test_neighbouring_concurrencies_get_a_row_each() -> None:
    assert table_of([choice(1, 2), choice(2, 1), choice(3, 0)]) == ((1, 1, 2), (2, 2, 1), (3, 3, 0))


def test_the_best_fixed_k_weighs_all_concurrencies_alike() -> None:
    # K = 4 gives twice the tokens alone, and a tenth of them at every other concurrency.
    sweep = make_sweep(lambda concurrency, k: (2.0 if concurrency == 1 else 0.1) if k == 4 else 1.0 + 0.1 * (k == 1))
    assert best_fixed(sweep) == Variant.fixed(1)


def test_two_rounds_are_too_few_for_an_interval() -> None:
    with pytest.raises(ValueError, match="at least 3 rounds are needed, got 2"):
        choose(make_sweep(modelled(NEVER_PAYS), rounds=2))


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    num_held = 0
    for _ in range(400):
        found = mean_of_rounds(chance.standard_normal(6))
        num_held += found.low < 0 < found.high
    assert 0.92 < num_held / 400 < 0.995
