"""The replay benchmark: its typing, its counts, and its main figure."""

from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest.bench.prompt.__main__ import main
from loadtest.bench.prompt.clients import AnchoredClient, characters_client, lines_client
from loadtest.bench.prompt.keystrokes import typed
from loadtest.bench.prompt.replay import (
    BlockCache,
    ReplayOptions,
    measure_layouts,
)
from loadtest.bench.runner.prompts import CursorText
from tests.unit.prompt.prompts import CODE


def test_only_whole_blocks_at_the_start_are_cached_and_the_last_token_is_always_computed() -> None:
    cache = BlockCache(4)
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7]) == 7
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7]) == 3
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 5
    assert cache.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 1
    assert cache.prefill([9, 2, 3, 4, 5, 6, 7, 8, 9]) == 9, "the same block behind another one is another block"


def test_a_key_prefills_at_most_half_of_what_the_plain_layout_does(model: Path) -> None:
    figures = measure_layouts(ReplayOptions(model=str(model), files=2, keys=60, tokens=512, sizes=(16, 128)))
    assert figures["num_keys"] == 120
    assert figures["num_differing_prompts"] == 0
    assert figures["prefilled_tokens_per_key_ratio"] <= 0.5
    assert figures["cached_share"] > figures["cached_share_plain"]
    assert figures["by_block_size"]["128"]["prefilled_tokens_per_key_ratio"] <= 0.5
    assert figures["tokenised_tokens_per_key"] < figures["prompt_tokens_per_key"] / 5
    assert figures["tokenise_ms_p50_whole"] > 0


def test_an_anchored_client_moves_its_window_seldom_and_never_sends_too_much() -> None:
    client = AnchoredClient(1500, 400)
    states = typed(CODE, 500, seed=2)
    sent = [client(state) for state in states]
    for state, window in zip(states, sent, strict=True):
        assert state.prefix.endswith(window.prefix)
        assert state.suffix.startswith(window.suffix)
        assert len(window.prefix) <= 1500
        assert len(window.suffix) <= 400
    assert sum(one.prefix[:64] != other.prefix[:64] for one, other in pairwise(sent)) <= 30
    assert len(AnchoredClient(1500, 400)(CursorText("x" * 2000, "")).prefix) == 1500, "a line of its own length"


def test_other_clients_cut_at_characters_or_lines() -> None:
    state = CursorText("one\ntwo\nthree", "four\nfive\nsix")
    assert characters_client(7, 7)(state) == CursorText("o\nthree", "four\nfi")
    assert lines_client(7, 7)(state) == CursorText("three", "four\n")
    assert lines_client(99, 99)(state) == state


@pytest.mark.parametrize(
    ("settings", "message"),
    [("{", "--settings': not JSON: "), ("[1]", "--settings': must be a JSON object, got '[1]'")],
)
def test_a_prompt_section_that_is_no_json_object_is_refused(settings: str, message: str) -> None:
    result = CliRunner().invoke(main, ["--settings", settings])
    assert result.exit_code == 2
    assert message in result.output
