"""A tuning's page, tables and JSON: they are complete, and the page loads nothing over the network."""

import json

import pytest

from loadtest.tuning.blocks import Block, Blocks, Variant
from loadtest.tuning.choice import best_fixed, candidates, choose, table_of, verify
from loadtest.tuning.report import as_json, render_tuning, tables
from loadtest.tuning.tuner import Tuned
from tests.unit.loadtest.report.test_page import Page
from tests.unit.loadtest.sweeps import CONCURRENCIES, KS, PAYS_AT_SMALL_BATCHES, make_sweep, modelled

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    sweep = make_sweep(modelled(PAYS_AT_SMALL_BATCHES), noise=0.02)
    choices = choose(sweep)
    table, fixed = table_of(choices), best_fixed(sweep)
    checks = make_sweep(modelled(PAYS_AT_SMALL_BATCHES), variants=candidates(table, fixed), noise=0.02, seed=3)
    beside = [Block(Variant("no draft"), at, number, 90.0 * at) for at in CONCURRENCIES for number in range(6)]
    verdict = verify(checks, table, fixed)
    return Tuned({"model": "m"}, sweep, tuple(choices), table, checks, verdict, Blocks(tuple(beside)))


def test_the_page_has_every_curve_and_the_verdict_and_loads_nothing(tuned: Tuned) -> None:
    page = Page(render_tuning(tuned, {"model": HOSTILE}))
    assert page.tags.count("svg") == len(CONCURRENCIES) + 1
    assert "script" not in page.tags
    assert not [value for name, value in page.attributes if name in {"src", "href"} and not value.startswith("#")]
    for said in ("The table is recommended", "Tokens/s against K, 16 at once", "no draft", HOSTILE):
        assert said in page.text
    assert len(page.ids) == len(set(page.ids))


def test_the_json_has_every_cell_and_no_nan(tuned: Tuned) -> None:
    found = json.loads(json.dumps(as_json(tuned, {"seed": 0}), allow_nan=False))
    assert len(found["cells"]) == len(CONCURRENCIES) * (len(KS) + 1)
    assert found["schedule"] == found["table"] == [list(row) for row in tuned.table]
    first = next(each for each in found["cells"] if (each["concurrency"], each["k"]) == (1, 4))
    assert (first["acceptance"], first["accepted_length"]) == (0.5, 3.0)
    assert first["step_ms"] == pytest.approx((first["total_ms_p50"] - first["ttft_ms_p50"]) / (20 - 8), rel=0.1)
    assert first["to_off"]["low"] > 1
    assert len(first["tokens_per_s_by_round"]) == 6
    beside = next(each for each in found["cells"] if each["variant"] == "no draft")
    assert (beside["num_answers"], beside["ttft_ms_p50"], beside["to_off"]) == (0, None, None)


def test_tables_have_a_row_for_each_cell(tuned: Tuned) -> None:
    found = tables(tuned)
    assert [len(each.rows) for each in found] == [len(CONCURRENCIES) * (len(KS) + 1), *[len(CONCURRENCIES)] * 2]
    assert all({len(row) for row in each.rows} == {len(each.headings)} for each in found)
