"""The replay benchmark: its typing, its counts, and its main figure."""

from itertools import pairwise
from pathlib import Path

from loadtest.bench.keystrokes import typed
from loadtest.bench.prompt import BlockCache, ReplayOptions, measure_layouts
from tests.unit.prompt.prompts import CODE


def test_only_whole_blocks_at_the_start_are_cached_and_the_last_token_is_always_computed() -> None:
    cache = BlockCache(4)
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7]) == 7
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7]) == 3
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 5
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 1
    assert cache.prefill([9, 2, 3, 4, 5, 6, 7, 8, 9]) == 9, "the same block behind another one is another block"


def test_each_state_is_a_key_away_from_the_last() -> None:
    states = typed(CODE, 400, seed=2)
    assert len(states) == 400
    enters = closed = away = deleted = 0
    for one, other in pairwise(states):
        grown = len(other.prefix + other.suffix) - len(one.prefix + one.suffix)
        is_near = other.prefix.startswith(one.prefix[:-1])
        away += not is_near
        if is_near:
            enters += "\n" in other.prefix[len(one.prefix) :]
            closed += grown == 2 and other.suffix != one.suffix
            deleted += grown == -1
            assert grown <= 2 or other.prefix[len(one.prefix) :].isspace()
    assert enters > 5
    assert closed > 1
    assert deleted > 1
    assert 2 <= away < 30
    assert typed(CODE, 400, seed=2) == states


def test_a_key_prefills_at_most_half_of_what_the_plain_layout_does(model: Path) -> None:
    figures = measure_layouts(ReplayOptions(model=str(model), files=2, keys=60, tokens=512))
    assert figures["num_keys"] == 120
    assert figures["num_differing_prompts"] == 0
    assert figures["prefilled_tokens_per_key_ratio"] <= 0.5
    assert figures["cached_share"] > figures["cached_share_plain"]
    assert figures["by_block_size"]["16"]["prefilled_tokens_per_key_ratio"] <= 0.5
    assert figures["tokenised_tokens_per_key"] < figures["prompt_tokens_per_key"] / 5
    assert figures["tokenise_ms_p50_whole"] > 0
