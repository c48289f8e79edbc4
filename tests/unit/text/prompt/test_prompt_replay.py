"""The replay benchmark: its typing, its counts, and its main figure."""

from pathlib import Path

from loadtest.bench.prompt import BlockCache, ReplayOptions, measure_layouts


def test_only_whole_blocks_at_the_start_are_cached_and_the_last_token_is_always_computed() -> None:
    cache = BlockCache(4)
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7]) == 7
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7]) == 3
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 5
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 1
    assert cache.prefill([9, 2, 3, 4, 5, 6, 7, 8, 9]) == 9, "the same block behind another one is another block"


def test_a_key_prefills_at_most_half_of_what_the_plain_layout_does(model: Path) -> None:
    figures = measure_layouts(ReplayOptions(model=str(model), files=2, keys=60, tokens=512))
    assert figures["num_keys"] == 120
    assert figures["num_differing_prompts"] == 0
    assert figures["prefilled_tokens_per_key_ratio"] <= 0.5
    assert figures["cached_share"] > figures["cached_share_plain"]
    assert figures["by_block_size"]["16"]["prefilled_tokens_per_key_ratio"] <= 0.5
    assert figures["tokenised_tokens_per_key"] < figures["prompt_tokens_per_key"] / 5
    assert figures["tokenise_ms_p50_whole"] > 0
