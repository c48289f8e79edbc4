"""Sums over a block's answers, and the order of blocks."""

from collections import Counter

import pytest

from loadtest.tuning.blocks import Answer, Block, Blocks, Variant
from loadtest.tuning.tuner import turns


def block(*answers: Answer) -> Block:
    return Block.of(Variant.fixed(2), 1, 0, answers, 1.0)


def test_answers_that_end_after_the_window_count_by_their_share_in_it() -> None:
    shed = Answer(0.5, 0.6, None, shed_reason="overload")
    found = block(Answer(0.0, 0.5, 0.1, num_tokens=10), Answer(0.5, 2.5, 0.1, num_tokens=20), shed)
    assert found.goodput == pytest.approx(10 + 20 * 0.25)
    assert (len(found.answers), found.shed) == (2, ("overload",))
    assert found.total_ms == pytest.approx(1250)
    assert block().goodput == 0


def test_every_variant_meets_every_concurrency_in_every_round_and_each_order_comes_again_reversed() -> None:
    variants = [Variant.fixed(k) for k in range(5)]
    plan = list(turns(variants, (1, 4), 6, "a"))
    cells = [(number, concurrency) for number in range(6) for concurrency in (1, 4)]
    assert Counter((number, concurrency) for number, concurrency, _turn in plan) == Counter(cells)
    orders = {(number, concurrency): turn for number, concurrency, turn in plan}
    assert all(sorted(turn, key=lambda each: each.k or 0) == variants for turn in orders.values())
    for number, concurrency in cells[::2]:
        if number % 2 == 0:
            assert orders[number, concurrency] == orders[number + 1, concurrency][::-1]
    assert orders[0, 1] != orders[2, 1]
    assert list(turns(variants, (1, 4), 6, "a")) == plan != list(turns(variants, (1, 4), 6, "b"))


def test_blocks_come_by_round_and_variants_by_k() -> None:
    made = [Block(Variant.fixed(k), 1, number, 1.0) for number in (1, 0) for k in (3, 0)]
    found = Blocks((*made, Block(Variant("no draft"), 1, 0, 1.0)))
    assert [each.name for each in found.variants] == ["K = 0", "K = 3", "no draft"]
    assert [each.round for each in found.of(1, "K = 3").all] == [0, 1]
