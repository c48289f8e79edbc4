"""The choice of K on sweeps of known models, the recommendation among three schedules, and the report."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from loadtest.targets.record import Outcome, Result
from loadtest.tuning.blocks import Block, Blocks, Rows, Variant
from loadtest.tuning.choice import (
    OFF,
    Choice,
    Estimate,
    as_variant,
    best_fixed,
    choose,
    crossover,
    ratio_of_rounds,
    table_of,
    troubles,
    verify,
    words,
)
from loadtest.tuning.report import as_json, render_tuning, tables
from loadtest.tuning.tuner import Tuned, turns
from tests.unit.loadtest.report.test_page import Page
from tests.unit.loadtest.sweeps import (
    CONCURRENCIES,
    KS,
    NEVER_PAYS,
    PAYS_AT_SMALL_BATCHES,
    SURVIVAL,
    answer,
    make_sweep,
    modelled,
)
from tests.unit.loadtest.typed import request

TABLE: Rows = ((1, 8, 3), (9, 64, 0))
FIXED = Variant.fixed(2)
HOSTILE = "<script>alert(1)</script>"


def test_answers_that_end_after_the_window_count_by_their_share_in_it() -> None:
    shed = Result(request(), 0.5, ended_at_s=0.6, outcome=Outcome.SHED, shed_reason="overload")
    results = [answer(0.5, 10), answer(2.5, 20, began_s=0.5), shed]
    found = Block.of(FIXED, 1, 0, results, 1.0)
    assert found.goodput == pytest.approx(10 + 20 * 0.25)
    assert (len(found.answers), found.shed) == (2, ("overload",))
    assert Block.of(FIXED, 1, 0, [], 1.0).goodput == 0


def test_every_variant_meets_every_concurrency_in_every_round_and_each_order_comes_again_reversed() -> None:
    variants = [Variant.fixed(k) for k in range(5)]
    plan = list(turns(variants, (1, 4), 6, "a"))
    orders = {(number, at): turn for number, at, turn in plan}
    assert Counter(orders.keys()) == Counter((number, at) for number in range(6) for at in (1, 4))
    assert all(sorted(turn, key=lambda each: each.k or 0) == variants for turn in orders.values())
    assert all(orders[number, at] == orders[number + 1, at][::-1] for number in (0, 2, 4) for at in (1, 4))
    assert orders[0, 1] != orders[2, 1]
    assert list(turns(variants, (1, 4), 6, "a")) == plan != list(turns(variants, (1, 4), 6, "b"))


@pytest.mark.parametrize("drift", [0.0, 1.5], ids=["steady", "four times slower at the end"])
def test_it_pays_at_small_batches_and_loses_at_large_ones(drift: float) -> None:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    truth = {each: max(KS, key=lambda k, at=each: goodput(at, k)) for each in CONCURRENCIES}
    found = choose(make_sweep(goodput, noise=0.01, drift=drift))
    for each in found:
        assert goodput(each.concurrency, each.k) > 0.98 * goodput(each.concurrency, truth[each.concurrency])
    first, table = found[0], table_of(found)
    assert first.gain.low > 1
    assert first.gain.value == pytest.approx(goodput(1, first.best_k) / goodput(1, 0), rel=0.02)
    assert (table[0][0], table[0][2], table[-1][1:]) == (1, truth[1], (64, 0))
    assert truth[1] > 2
    assert crossover(table) == table[-1][0] > 4


@pytest.mark.parametrize(
    ("times", "survival", "k"),
    [
        (NEVER_PAYS, SURVIVAL, 0),
        ((1e-3, 1e-4, 20e-3, 5e-3, 0.0), (0.98, 0.96, 0.94, 0.92), 0),
        ((10e-3, 1e-4, 0.0, 0.0, 0.0), SURVIVAL, max(KS)),
    ],
    ids=["never pays", "high acceptance at a loss", "drafts cost nothing"],
)
def test_one_k_for_every_batch_size(times: tuple[float, ...], survival: tuple[float, ...], k: int) -> None:
    sweep = make_sweep(modelled(times, survival), noise=0.01)
    table = table_of(choose(sweep))
    assert (table, best_fixed(sweep)) == (((1, 64, k),), Variant.fixed(k))
    assert as_variant(table) == Variant.fixed(k)
    assert crossover(table) == (None if k else 1)


def test_noise_alone_moves_nothing() -> None:
    """Of five Ks that are all the same one looks best in each sweep, at each concurrency. The stated rate is 10%."""
    sweeps = [make_sweep(lambda concurrency, _k: 100.0 * concurrency, noise=0.05, seed=seed) for seed in range(40)]
    taken = [each.k for sweep in sweeps for each in choose(sweep)]
    assert sum(k > 0 for k in taken) <= 0.1 * len(taken)


@pytest.mark.parametrize(
    ("ks", "table"),
    [
        ((3, 2, 1, 0), ((1, 2, 3), (3, 8, 2), (9, 32, 1), (33, 64, 0))),
        ((3, 3, 0, 0), ((1, 8, 3), (9, 64, 0))),
        ((0, 2, 0, 0), ((1, 2, 0), (3, 8, 2), (9, 64, 0))),
    ],
)
def test_rows_follow_one_another_and_meet_halfway(ks: tuple[int, ...], table: Rows) -> None:
    same = Estimate(1.0, 1.0, 1.0)
    assert table_of([Choice(at, k, k, same) for at, k in zip(CONCURRENCIES, ks, strict=True)]) == table


def test_the_best_fixed_k_weighs_all_concurrencies_alike() -> None:
    # K = 4 gives twice the tokens alone, and a tenth of them at every other concurrency.
    sweep = make_sweep(lambda concurrency, k: (2.0 if concurrency == 1 else 0.1) if k == 4 else 1.0 + 0.1 * (k == 1))
    assert best_fixed(sweep) == Variant.fixed(1)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance, num_held = np.random.default_rng(1), 0
    for _ in range(400):
        found = ratio_of_rounds(np.exp(chance.standard_normal(6)), np.ones(6))
        num_held += found.low < 1 < found.high
    assert 0.92 < num_held / 400 < 0.995
    with pytest.raises(ValueError, match="at least 3 rounds are needed, got 2"):
        ratio_of_rounds(np.ones(2), np.ones(2))


def best_at_two(concurrency: int, k: int) -> float:
    return 100.0 * concurrency * (1 + 0.2 * (k == 2))


@pytest.mark.parametrize(
    ("goodput", "table", "recommended", "said"),
    [
        (modelled(PAYS_AT_SMALL_BATCHES), TABLE, as_variant(TABLE), "stops paying at a batch size of about 9"),
        (best_at_two, TABLE, FIXED, "does not win beyond noise: K = 2 for all is recommended"),
        (modelled(NEVER_PAYS), TABLE, OFF, "K = 0 for all is recommended"),
        (lambda concurrency, _k: 100.0 * concurrency, TABLE, OFF, "K = 0 for all is recommended"),
        (best_at_two, ((1, 64, 2),), FIXED, "pays up to the largest batch measured, 64"),
    ],
    ids=["the table wins", "loses to one K", "loses to off", "only looks better", "a table of one K"],
)
def test_a_schedule_is_recommended_if_it_wins_on_other_traffic(
    goodput: Callable[[int, int], float], table: Rows, recommended: Variant, said: str
) -> None:
    variants = dict.fromkeys((OFF, FIXED, as_variant(table)))
    found = verify(make_sweep(goodput, variants=list(variants), noise=0.01, seed=5), table, FIXED)
    assert found.recommended == recommended
    assert said in " ".join(words(table, found))


def test_where_all_are_off_there_is_nothing_to_measure() -> None:
    table: Rows = ((1, 64, 0),)
    found = verify(Blocks(()), table, OFF)
    assert found.recommended == OFF
    assert words(table, found)[0] == "Speculation pays at no batch size: K should be 0 everywhere."


@pytest.mark.parametrize(
    ("num_shed", "num_cached", "said"),
    [(0, 0, None), (1, 0, None), (30, 0, "(rate_limited 30)"), (0, 90, "invalid: 90 of 120 answers came from")],
)
def test_a_server_that_sheds_or_answers_from_its_cache_is_reported(
    num_shed: int, num_cached: int, said: str | None
) -> None:
    first, *others = make_sweep(modelled(NEVER_PAYS)).all
    blocks = Blocks((replace(first, shed=("rate_limited",) * num_shed), *others))
    for each in blocks.answers[:num_cached]:
        each.cache_level = "local"
    found = troubles(blocks)
    assert bool(found) is bool(said)
    assert all(said and said in line for line in found)


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    goodput = modelled(PAYS_AT_SMALL_BATCHES)
    sweep = make_sweep(goodput, noise=0.02)
    choices = choose(sweep)
    table, fixed = table_of(choices), best_fixed(sweep)
    checks = make_sweep(goodput, variants=[OFF, fixed, as_variant(table)], noise=0.02, seed=3)
    return Tuned({"model": "m"}, sweep, choices, table, checks, verify(checks, table, fixed))


def test_the_page_has_the_curves_and_the_verdict_and_loads_nothing(tuned: Tuned) -> None:
    page = Page(render_tuning(tuned, {"model": HOSTILE}))
    assert page.tags.count("svg") == 1
    assert "script" not in page.tags
    assert not [value for name, value in page.attributes if name in {"src", "href"} and not value.startswith("#")]
    for said in ("K should be 0 from there on", "16 at once", "Recommended: ", HOSTILE):
        assert said in page.text


def test_the_json_has_every_cell_and_no_nan(tuned: Tuned) -> None:
    found = json.loads(json.dumps(as_json(tuned, {"seed": 0}), allow_nan=False))
    assert len(found["cells"]) == len(CONCURRENCIES) * len(KS)
    assert found["schedule"] == found["table"] == [list(row) for row in tuned.table]
    first = next(each for each in found["cells"] if (each["concurrency"], each["k"]) == (1, 4))
    assert (first["acceptance"], first["accepted_length"]) == (0.5, 3.0)
    assert first["step_ms"] == pytest.approx((first["total_ms_p50"] - first["ttft_ms_p50"]) / (20 - 8), rel=0.1)
    assert first["to_off"]["low"] > 1
    assert len(first["tokens_per_s_by_round"]) == 6
    assert [len(each.rows) for each in tables(tuned)] == [len(CONCURRENCIES) * len(KS), *[len(CONCURRENCIES)] * 2]
