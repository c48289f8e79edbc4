"""Sums over a block's answers, and the order of blocks."""

from collections import Counter

import pytest

from loadtest.traffic.scenario import CriteriaSettings
from loadtest.tuning.blocks import Answer, Block, Blocks, Variant
from loadtest.tuning.plan import turns

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


def test_steps_are_counted_by_the_tokens_without_a_draft() -> None:
    answer = Answer(0.0, 1.0, 0.1, num_tokens=24, num_drafted=28, num_accepted=9, decode_s=0.7)
    assert answer.num_steps == 14
    found = block(answer)
    assert found.decode_s / found.num_steps == pytest.approx(0.05)


def test_shed_requests_are_counted_apart() -> None:
    found = block(Answer(0.0, 0.5, 0.1, num_tokens=8), Answer(0.5, 0.6, None, shed_reason="overload"))
    assert (found.num_answers, found.shed) == (1, ("overload",))
    assert found.total_ms == pytest.approx(500)


def test_generations_in_the_engine_are_an_average_over_the_window() -> None:
    found = block(Answer(0.0, 1.0, 0.1, num_tokens=4, engine_s=0.8), Answer(0.0, 1.0, 0.1, num_tokens=4, engine_s=0.7))
    assert found.mean_batch == pytest.approx(1.5)


def test_without_answers_there_is_no_goodput() -> None:
    assert block().goodput == 0


def test_every_variant_meets_every_concurrency_in_every_round_next_to_the_others() -> None:
    variants = [Variant.fixed(k) for k in range(5)]
    plan = list(turns(variants, (1, 4), 6, "a"))
    assert Counter((turn.round, turn.concurrency) for turn in plan) == Counter((r, c) for r in range(6) for c in (1, 4))
    assert all(sorted(turn.variants, key=lambda each: each.k or 0) == variants for turn in plan)


def test_each_order_comes_again_reversed() -> None:
    variants = [Variant.fixed(k) for k in range(5)]
    orders = {(turn.round, turn.concurrency): turn.variants for turn in turns(variants, (1, 4), 4, "a")}
    for number in (0, 2):
        for concurrency in (1, 4):
            assert orders[number, concurrency] == orders[number + 1, concurrency][::-1]
    assert orders[0, 1] != orders[2, 1]
    assert list(turns(variants, (1,), 2, "a")) == list(turns(variants, (1,), 2, "a"))
    assert list(turns(variants, (1,), 2, "a")) != list(turns(variants, (1,), 2, "b"))


def test_blocks_come_by_round_and_variants_by_k() -> None:
    made = [Block(Variant.fixed(k), 1, number, 1.0) for number in (1, 0) for k in (3, 0)]
    beside = Block(Variant("no draft"), 1, 0, 1.0)
    found = Blocks((*made, beside))
    assert [each.name for each in found.variants] == ["K = 0", "K = 3", "no draft"]
    assert [each.round for each in found.of(1, "K = 3")] == [0, 1]
    assert found.max_num_speculative_tokens == 3
