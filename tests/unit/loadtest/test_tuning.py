"""The choice of K on sweeps of known models, with noise and drift; the recommendation and the report."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from completion.v1 import completion_pb2 as pb
from loadtest.targets.record import Outcome, Result
from loadtest.tuning.blocks import Block, Blocks, Rows, Variant
from loadtest.tuning.choice import (
    OFF,
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
from tests.unit.loadtest.typed import request

CONCURRENCIES = (1, 4, 16, 64)
KS = tuple(range(5))
ROUNDS = 6

SURVIVAL = (0.8, 0.6, 0.42, 0.3)
"""For each position of a draft, the share of drafts that are accepted up to and including it."""
PAYS_AT_SMALL_BATCHES = (10e-3, 0.1e-3, 1e-3, 0.5e-3, 0.3e-3)
"""Seconds of a step: the step, each generation, a draft at all, each draft token, and each one to verify.

Verifying costs as much as it brings at some forty generations.
"""
NEVER_PAYS = (4e-3, 0.2e-3, 6e-3, 3e-3, 0.2e-3)

NUM_TOKENS = 21
PREFILL_S = 0.02


def modelled(terms: Sequence[float]) -> Callable[[int, int], float]:
    """Return tokens a second for completions of NUM_TOKENS, by concurrency and K."""

    def goodput(concurrency: int, k: int) -> float:
        steps = (NUM_TOKENS - 1) / (1 + sum(SURVIVAL[:k]))
        step_s = float(np.dot(terms, (1, concurrency, k > 0, k, k * concurrency)))
        return concurrency * NUM_TOKENS / (PREFILL_S + steps * step_s)

    return goodput


def answer(ended_s: float, num_tokens: int, k: int = 0, *, began_s: float = 0.0) -> Result:
    """Return an answer, of whose draft tokens half are accepted."""
    return Result(
        request(),
        began_s,
        began_s + PREFILL_S,
        ended_s,
        Outcome.ANSWERED,
        num_tokens,
        drafted_tokens=4 * k,
        accepted_tokens=2 * k,
        server=pb.Timings(decode_ms=1000 * (ended_s - began_s - PREFILL_S)),
    )


def k_at(variant: Variant, batch: int) -> int:
    """Return the K of a batch size; the last row holds beyond its end."""
    rows = variant.rows or ()
    return next((k for _first, last, k in rows if batch <= last), rows[-1][2])


def make_sweep(
    goodput: Callable[[int, int], float],
    *,
    variants: Sequence[Variant] = tuple(map(Variant.fixed, KS)),
    noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
) -> Blocks:
    """Return blocks in the order in which they would be measured; with drift, the last is so much slower (log)."""
    chance = np.random.default_rng(seed)
    plan = [
        (number, concurrency, each)
        for number, concurrency, turn in turns(variants, CONCURRENCIES, ROUNDS, str(seed))
        for each in turn
    ]
    blocks = []
    for place, (number, concurrency, variant) in enumerate(plan):
        k = k_at(variant, concurrency)
        slower = np.exp(noise * chance.standard_normal() - drift * place / len(plan))
        rate = goodput(concurrency, k) * slower
        blocks.append(
            Block(variant, concurrency, number, rate, (answer(concurrency * NUM_TOKENS / rate, NUM_TOKENS, k),))
        )
    return Blocks(tuple(blocks))


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
    ("times", "k"),
    [(NEVER_PAYS, 0), ((10e-3, 1e-4, 0.0, 0.0, 0.0), max(KS))],
    ids=["never pays", "drafts cost nothing"],
)
def test_one_k_for_every_batch_size(times: tuple[float, ...], k: int) -> None:
    sweep = make_sweep(modelled(times), noise=0.01)
    table = table_of(choose(sweep))
    assert (table, best_fixed(sweep)) == (((1, 64, k),), Variant.fixed(k))
    assert as_variant(table) == Variant.fixed(k)
    assert crossover(table) == (None if k else 1)


def test_two_rounds_are_too_few_for_an_interval() -> None:
    with pytest.raises(ValueError, match="at least 3 rounds are needed, got 2"):
        ratio_of_rounds(np.ones(2), np.ones(2))


def test_noise_alone_moves_nothing() -> None:
    """Of five Ks that are all the same one looks best in each sweep, at each concurrency. The stated rate is 10%."""
    sweeps = [make_sweep(lambda concurrency, _k: 100.0 * concurrency, noise=0.05, seed=seed) for seed in range(40)]
    taken = [each.k for sweep in sweeps for each in choose(sweep)]
    assert sum(k > 0 for k in taken) <= 0.1 * len(taken)


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


def test_the_page_has_the_curves_and_the_verdict(tuned: Tuned) -> None:
    page = Page(render_tuning(tuned, {"model": HOSTILE}))
    assert page.tags.count("svg") == 1
    assert "script" not in page.tags
    for said in ("K should be 0 from there on", "16 at once", "Recommended: ", HOSTILE):
        assert said in page.text


def test_the_json_has_every_cell_and_no_nan(tuned: Tuned) -> None:
    found = json.loads(json.dumps(as_json(tuned, {"seed": 0}), allow_nan=False))
    assert len(found["cells"]) == len(CONCURRENCIES) * len(KS)
    assert found["schedule"] == found["table"] == [list(row) for row in tuned.table]
    first = next(each for each in found["cells"] if (each["concurrency"], each["k"]) == (1, 4))
    assert (first["acceptance"], first["accepted_length"]) == (0.5, 3.0)
    assert first["step_ms"] == pytest.approx((first["total_ms_p50"] - first["ttft_ms_p50"]) / (20 - 8), rel=0.1)
    assert [len(each.rows) for each in tables(tuned)] == [len(CONCURRENCIES) * len(KS), *[len(CONCURRENCIES)] * 2]
