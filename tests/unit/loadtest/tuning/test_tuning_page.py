"""A tuning's page and its JSON: both are complete, and the page loads nothing over the network."""

import json
from dataclasses import replace

import pytest

from loadtest.tuning.blocks import Block, Blocks, Variant
from loadtest.tuning.choice import best_fixed, candidates, choose, table_of, verify, words
from loadtest.tuning.fit import fit
from loadtest.tuning.report import as_json, check_table, render_tuning, sweep_table
from loadtest.tuning.tuner import Tuned
from tests.unit.loadtest.report.test_page import Page
from tests.unit.loadtest.sweeps import (
    CONCURRENCIES,
    DRAFT,
    KS,
    NUM_TOKENS,
    PAYS_AT_SMALL_BATCHES,
    make_counted_sweep,
    make_sweep,
    modelled,
)

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    counted = make_counted_sweep(PAYS_AT_SMALL_BATCHES, DRAFT, noise=0.02)
    sweep = Blocks(tuple(replace(b, total_ms=1000 * b.concurrency * NUM_TOKENS / b.goodput) for b in counted.all))
    choices = choose(sweep)
    table, fixed = table_of(choices), best_fixed(sweep)
    checks = make_sweep(modelled(PAYS_AT_SMALL_BATCHES), variants=candidates(table, fixed), noise=0.02, seed=3)
    verdict = verify(checks, table, fixed)
    beside = [Block(Variant("no draft"), at, number, 90.0 * at) for at in CONCURRENCIES for number in range(6)]
    said = tuple(words(choices, table, verdict))
    return Tuned(
        {"model": "m"},
        sweep,
        fit(sweep),
        tuple(choices),
        table,
        checks,
        verdict,
        said,
        (HOSTILE,),
        Blocks(tuple(beside)),
    )


def test_the_page_has_every_curve_and_the_verdict_and_loads_nothing(tuned: Tuned) -> None:
    text = render_tuning(tuned, {"model": HOSTILE})
    page = Page(text)
    assert page.tags.count("svg") == len(CONCURRENCIES) + 4
    assert "script" not in page.tags
    assert not [value for name, value in page.attributes if name in {"src", "href"} and not value.startswith("#")]
    for said in ("The table is recommended", "Tokens/s against K, 16 at once", "Predicted and measured", "no draft"):
        assert said in page.text
    assert len(page.ids) == len(set(page.ids))


def test_the_json_has_every_cell_and_no_nan(tuned: Tuned) -> None:
    found = json.loads(json.dumps(as_json(tuned, {"seed": 0}), allow_nan=False))
    assert len(found["cells"]) == len(CONCURRENCIES) * (len(KS) + 1)
    assert found["schedule"] == found["table"] == [list(row) for row in tuned.table]
    first = next(each for each in found["cells"] if (each["concurrency"], each["k"]) == (1, 4))
    assert first["accepted_length"] == pytest.approx(DRAFT.length(4), rel=0.01)
    assert first["to_off"]["low"] > 1
    assert first["predicted_tokens_per_s"] == pytest.approx(first["tokens_per_s"], rel=0.1)
    assert len(found["blocks"]) == len(tuned.sweep.all) + len(tuned.others.all) + len(tuned.checks.all)


def test_tables_have_a_row_for_each_cell(tuned: Tuned) -> None:
    assert len(sweep_table(tuned).rows) == len(CONCURRENCIES) * (len(KS) + 1)
    assert len(check_table(tuned).rows) == len(CONCURRENCIES)
    for table in (sweep_table(tuned), check_table(tuned)):
        assert {len(row) for row in table.rows} == {len(table.headings)}
