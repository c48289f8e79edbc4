"""The choice of K for each batch size on sweeps of known models, the recommendation among three schedules, its text."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from loadtest.tuning.blocks import Blocks, Rows, Variant
from loadtest.tuning.choice import (
    OFF,
    Choice,
    Estimate,
    as_variant,
    best_fixed,
    candidates,
    changes,
    choose,
    crossover,
    mean_of_rounds,
    table_of,
    troubles,
    verify,
    words,
)
from tests.unit.loadtest.sweeps import (
    CONCURRENCIES,
    KS,
    NEVER_PAYS,
    NUM_TOKENS,
    PAYS_AT_SMALL_BATCHES,
    SURVIVAL,
    make_sweep,
    modelled,
)


def choice(concurrency: int, k: int) -> Choice:
    return Choice(concurrency, k, k, Estimate(1.0, 1.0, 1.0), Estimate(0.0, 0.0, 0.0), 10.0)


@pytest.mark.parametrize("drift", [0.0, 1.5], ids=["steady", "four times slower at the end"])
def test_it_pays_at_small_batches_and_loses_at_large_ones(drift: float) -> None:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    truth = {each: max(KS, key=lambda k, at=each: goodput(at, k)) for each in CONCURRENCIES}
    assert truth[1] > 2
    assert truth[64] == 0
    found = choose(make_sweep(goodput, noise=0.01, drift=drift))
    for each in found:
        assert goodput(each.concurrency, each.k) > 0.98 * goodput(each.concurrency, truth[each.concurrency])
    table = table_of(found)
    assert (table[0][0], table[0][2]) == (1, truth[1])
    assert table[-1][1:] == (64, 0)
    assert crossover(table) == table[-1][0] > 4


def test_the_saving_is_reported_with_its_interval() -> None:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    first = choose(make_sweep(goodput, noise=0.01, seed=2))[0]
    saved_ms = 1000 * NUM_TOKENS * (1 / goodput(1, 0) - 1 / goodput(1, first.k))
    assert first.saved_ms.low < saved_ms < first.saved_ms.high
    assert first.gain.low < goodput(1, first.k) / goodput(1, 0) < first.gain.high
    assert first.gain.low > 1


@pytest.mark.parametrize(
    ("times", "survival", "table"),
    [
        (NEVER_PAYS, SURVIVAL, ((1, 64, 0),)),
        ((1e-3, 1e-4, 20e-3, 5e-3, 0.0), (0.98, 0.96, 0.94, 0.92), ((1, 64, 0),)),
        ((10e-3, 1e-4, 0.0, 0.0, 0.0), SURVIVAL, ((1, 64, max(KS)),)),
    ],
    ids=["never pays", "high acceptance at a loss", "drafts cost nothing"],
)
def test_one_k_for_every_batch_size(times: tuple[float, ...], survival: tuple[float, ...], table: Rows) -> None:
    found = choose(make_sweep(modelled(times, survival), noise=0.01))
    assert table_of(found) == table
    assert crossover(table) == (1 if table[0][2] == 0 else None)
    assert all((each.gain.high < 1) is (each.k == 0) for each in found)


def test_noise_alone_moves_nothing() -> None:
    """Of five Ks that are all the same one looks best in each sweep, at each concurrency. The stated rate is 10%."""
    taken = [
        each.k
        for seed in range(40)
        for each in choose(make_sweep(lambda concurrency, _k: 100.0 * concurrency, noise=0.05, seed=seed))
    ]
    assert len(taken) == 160
    assert sum(k > 0 for k in taken) <= 16


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
    assert table_of([choice(1, 2), choice(2, 1), choice(3, 0)]) == ((1, 1, 2), (2, 2, 1), (3, 3, 0)), "neighbours"


def test_the_best_fixed_k_weighs_all_concurrencies_alike() -> None:
    # K = 4 gives twice the tokens alone, and a tenth of them at every other concurrency.
    sweep = make_sweep(lambda concurrency, k: (2.0 if concurrency == 1 else 0.1) if k == 4 else 1.0 + 0.1 * (k == 1))
    assert best_fixed(sweep) == Variant.fixed(1)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    num_held = 0
    for _ in range(400):
        found = mean_of_rounds(chance.standard_normal(6))
        num_held += found.low < 0 < found.high
    assert 0.92 < num_held / 400 < 0.995
    with pytest.raises(ValueError, match="at least 3 rounds are needed, got 2"):
        mean_of_rounds(chance.standard_normal(2))


TABLE: Rows = ((1, 8, 3), (9, 64, 0))
FIXED = Variant.fixed(2)


def checked(goodput: Callable[[int, int], float], table: Rows = TABLE, fixed: Variant = FIXED) -> Blocks:
    return make_sweep(goodput, variants=candidates(table, fixed), noise=0.01, seed=5)


def test_a_winning_table_is_recommended_with_its_saving() -> None:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    choices = choose(make_sweep(goodput, noise=0.01))
    table, fixed = table_of(choices), best_fixed(make_sweep(goodput, noise=0.01))
    found = verify(make_sweep(goodput, variants=candidates(table, fixed), noise=0.01, seed=9), table, fixed)
    assert found.recommended == as_variant(table)
    assert found.table_over_fixed.low > 1
    assert found.table_over_off.low > 1
    said = " ".join(words(table, found))
    assert "K should be 0 from there on" in said
    assert "The table is recommended: it wins beyond noise." in said
    assert "started without drafts also saves their memory" in said


def same(concurrency: int, _k: int) -> float:
    return 100.0 * concurrency


def best_at_two(concurrency: int, k: int) -> float:
    return 100.0 * concurrency * (1 + 0.2 * (k == 2))


@pytest.mark.parametrize(
    ("goodput", "recommended", "said"),
    [
        (best_at_two, FIXED, "does not win beyond noise. One K for all, K = 2, is recommended"),
        (modelled(NEVER_PAYS), OFF, "Off, K = 0, is recommended"),
        (same, OFF, "Off, K = 0, is recommended"),
    ],
    ids=["loses to one K", "loses to off", "only looks better"],
)
def test_a_table_that_does_not_win_is_not_recommended(
    goodput: Callable[[int, int], float], recommended: Variant, said: str
) -> None:
    found = verify(checked(goodput), TABLE, FIXED)
    assert found.recommended == recommended
    assert any(said in line for line in words(TABLE, found))


def test_a_table_of_one_k_is_that_k_and_is_measured_once() -> None:
    table: Rows = ((1, 64, 2),)
    assert candidates(table, FIXED) == [OFF, FIXED]
    found = verify(checked(best_at_two, table), table, FIXED)
    assert found.table_over_fixed.value == 1
    assert found.recommended == FIXED == as_variant(table)


def test_where_all_are_off_there_is_nothing_to_measure() -> None:
    table: Rows = ((1, 64, 0),)
    assert candidates(table, OFF) == [OFF]
    found = verify(Blocks(()), table, OFF)
    assert found.recommended == OFF
    said = words(table, found)
    assert "Speculation pays at no batch size: K should be 0 everywhere." in said
    assert any("nothing to check" in line for line in said)


@pytest.mark.parametrize(
    ("num_shed", "num_cached", "said"),
    [
        (0, 0, None),
        (1, 0, None),
        (30, 0, "(rate_limited 30)"),
        (0, 90, "The result is invalid: 90 of 120 answers came from the server's completion cache"),
    ],
)
def test_a_server_that_sheds_or_answers_from_its_cache_is_reported(
    num_shed: int, num_cached: int, said: str | None
) -> None:
    blocks = make_sweep(modelled(NEVER_PAYS)).all
    first = replace(blocks[0], shed=("rate_limited",) * num_shed)
    cached = [replace(each, answers=(replace(each.answers[0], is_cached=True),)) for each in blocks[:num_cached]]
    found = troubles(Blocks((*cached, *(first, *blocks[1:])[num_cached:])))
    assert bool(found) is bool(said)
    assert all(said and said in line for line in found)


@pytest.mark.parametrize(
    ("slower", "num_said"), [(1.0, 0), (1 / 1.15, 0), (1 / 4.5, len(CONCURRENCIES)), (2.0, len(CONCURRENCIES))]
)
def test_a_check_far_from_the_sweep_is_reported(slower: float, num_said: int) -> None:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    checks = checked(lambda concurrency, k: slower * goodput(concurrency, k))
    said = changes(make_sweep(goodput, noise=0.02), checks, as_variant(TABLE))
    assert len(said) == num_said
    assert all("the check of table" in line for line in said)


@pytest.mark.parametrize(("noise", "is_said"), [(0.01, False), (0.5, True)])
def test_rounds_that_differ_too_much_are_reported(noise: float, is_said: bool) -> None:
    sweep = make_sweep(modelled(NEVER_PAYS), noise=noise)
    said = troubles(sweep, choose(sweep))
    assert any("can't be told from noise" in line for line in said) is is_said
