"""The recommendation among three schedules, and its text."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from loadtest.tuning.blocks import Blocks, Rows, Variant
from loadtest.tuning.choice import OFF, best_fixed, choose, table_of
from loadtest.tuning.verdict import as_variant, candidates, troubles, verify, words
from tests.unit.loadtest.sweeps import NEVER_PAYS, PAYS_AT_SMALL_BATCHES, make_sweep, modelled

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
    said = " ".join(words(choices, table, found))
    assert f"K = {choices[0].k} saves" in said
    assert "K should be 0 from there on" in said
    assert "The table is recommended: it wins beyond noise." in said
    assert "started without a draft may be faster" in said


def test_a_table_that_loses_to_one_k_says_so() -> None:
    # On new traffic drafting pays at every batch size.
    found = verify(checked(lambda concurrency, k: 100.0 * concurrency * (1 + 0.2 * (k == 2))), TABLE, FIXED)
    assert found.recommended == FIXED
    said = words([], TABLE, found)
    assert any("does not win beyond noise. One K for all, K = 2, is recommended" in line for line in said)


def test_a_table_that_loses_to_off_says_so() -> None:
    found = verify(checked(modelled(NEVER_PAYS)), TABLE, FIXED)
    assert found.recommended == OFF
    assert any("Off, K = 0, is recommended" in line for line in words([], TABLE, found))


def test_a_table_that_only_looks_better_is_not_recommended() -> None:
    found = verify(checked(lambda concurrency, _k: 100.0 * concurrency), TABLE, FIXED)
    assert found.recommended == OFF


def test_a_table_of_one_k_is_that_k_and_is_measured_once() -> None:
    table: Rows = ((1, 64, 2),)
    assert candidates(table, FIXED) == [OFF, FIXED]
    found = verify(checked(lambda concurrency, k: 100.0 * concurrency * (1 + 0.2 * (k == 2)), table), table, FIXED)
    assert found.table_over_fixed.value == 1
    assert found.recommended == FIXED == as_variant(table)


def test_where_all_are_off_there_is_nothing_to_measure() -> None:
    table: Rows = ((1, 64, 0),)
    assert candidates(table, OFF) == [OFF]
    found = verify(Blocks(()), table, OFF)
    assert found.recommended == OFF
    said = words([], table, found)
    assert "Speculation pays at no batch size: K should be 0 everywhere." in said
    assert any("nothing to check" in line for line in said)


def test_each_concurrency_without_gain_has_the_cost_of_drafting() -> None:
    choices = choose(make_sweep(modelled(NEVER_PAYS), noise=0.005))
    said = words(choices, table_of(choices), verify(Blocks(()), ((1, 64, 0),), OFF))
    assert all(
        re.search("K should be 0: even with the best other, [0-9], it is [0-9.]+ ms more", line)
        for line in said[: len(choices)]
    )


@pytest.mark.parametrize(("num_shed", "is_said"), [(0, False), (1, False), (30, True)])
def test_a_server_that_sheds_is_reported(num_shed: int, is_said: bool) -> None:
    sweep = make_sweep(modelled(NEVER_PAYS))
    first = replace(sweep.all[0], num_answers=400, shed=("rate_limited",) * num_shed)
    said = troubles(Blocks((first, *sweep.all[1:])))
    assert bool(said) is is_said
    assert all("rate_limited 30" in line for line in said)


@pytest.mark.parametrize(("noise", "is_said"), [(0.01, False), (0.5, True)])
def test_rounds_that_differ_too_much_are_reported(noise: float, is_said: bool) -> None:
    sweep = make_sweep(modelled(NEVER_PAYS), noise=noise)
    said = troubles(sweep, choose(sweep))
    assert any("can't be told from noise" in line for line in said) is is_said
