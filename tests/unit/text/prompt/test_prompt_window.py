"""Where a text is cut, and clients that clip it themselves."""

from itertools import pairwise

import pytest

from completion_server.text.prompt.tokens.plaintext import make_plain
from completion_server.text.prompt.tokens.reuse import Encoded, Encoder
from completion_server.text.prompt.window import (
    HEAD_CHARACTERS,
    SentText,
    choose_start,
    find_window,
    first_sent,
)
from tests.support.vocabularies import embedded
from tests.unit.text.prompt.prompts import CODE, CURSOR, builder_of, layout_of, request_at


def encoded(text: str) -> Encoded:
    return Encoder(make_plain(embedded())).encode(text)[0]


LINES = CODE.splitlines(keepends=True)


def test_the_whole_text_is_shown_where_it_fits() -> None:
    text = "".join(LINES[:30])
    assert choose_start(encoded(text), 10_000, 0.2) == 0
    assert choose_start(encoded(text), 10_000, 0.2, is_sliding=True) > 0, "that line will not be sent for long"


@pytest.mark.parametrize("budget", [100, 300, 700])
def test_a_window_starts_at_a_line_and_leaves_room_to_grow(budget: int) -> None:
    text = "".join(LINES[:200])
    shown = encoded(text)
    start = choose_start(shown, budget, 0.2)
    left = len(shown.ids) - shown.num_tokens_before(start)
    assert text[start - 1] == "\n"
    assert budget * 0.6 <= left <= budget * 0.8


def test_a_window_starts_at_the_left_margin_where_it_can() -> None:
    text = "import os\n" + "    x = 1\n" * 60 + "def f():\n" + "    y = 2\n" * 60
    start = choose_start(encoded(text), 500, 0.25)
    assert text[start:].startswith("def f():")


def test_without_a_line_in_reach_the_window_starts_at_the_next_one() -> None:
    text = "x = '" + "abcdefg " * 400 + "'\ny = 1\n"
    assert text[choose_start(encoded(text), 200, 0.2) :] == "y = 1\n"
    assert choose_start(encoded("x" * 3000), 100, 0.2) == 3000
    assert choose_start(encoded(text), 0, 0.2) == len(text)
    assert choose_start(encoded(text), -5, 0.2) == len(text)
    assert choose_start(encoded(""), 100, 0.2) == 0


def test_a_window_that_is_about_to_be_clipped_is_given_up() -> None:
    text = "x = 1\n" * 200
    head = text[:HEAD_CHARACTERS]
    assert find_window(text, 6, head, len(text) - 18, 10_000, is_moved=True) == 18
    assert find_window(text, 6, head, len(text) - 12, 10_000, is_moved=True) is None
    assert find_window(text, 6, head, len(text) - 12, 10_000) == 6, "its start is still sent"


WINDOW = 1500


def after(*texts: str) -> SentText:
    """Return what is remembered after these texts, each shown from its start."""
    sent = first_sent(texts[0])
    for earlier, text in pairwise(texts):
        sent = sent.next(text, earlier, has_moved_up=False)
    return sent


@pytest.mark.parametrize("num_keys", [1, 5, 150, 900])
def test_a_client_that_counts_characters_is_noticed(num_keys: int) -> None:
    sent = after(CODE[:WINDOW], CODE[num_keys : num_keys + WINDOW])
    assert sent.clip_size == WINDOW
    assert sent.is_clipped


@pytest.mark.parametrize(
    "later",
    [
        CODE[: WINDOW + 1],
        CODE[:700],
        "import sys\n" + CODE[:WINDOW],
        CODE[:40] + "edited" + CODE[40:WINDOW],
        CODE[:5000],
        "",
        "x",
    ],
)
def test_a_document_that_is_sent_whole_is_not_taken_for_clipped(later: str) -> None:
    assert not after(CODE[:WINDOW], later).is_clipped


def test_a_text_that_grows_beyond_is_not_clipped_any_more() -> None:
    sent = after(CODE[:WINDOW], CODE[9 : WINDOW + 9])
    grown = sent.next(CODE[9 : 2 * WINDOW], "", has_moved_up=False)
    assert grown.clip_size == 0


def requests_of(cursors: list[int]) -> list[str]:
    return [CODE[max(0, cursor - WINDOW) : cursor] + CURSOR + CODE[cursor + 60 :][:400] for cursor in cursors]


def num_laid_out_anew(documents: list[str]) -> int:
    """Return how often the prompt of the embedded family changed at its start."""
    builder = builder_of("embedded", max_prompt_tokens=1024)
    prompts = [builder.build(request_at(document)).token_ids for document in documents]
    return sum(one[:60] != other[:60] for one, other in pairwise(prompts))


def test_a_jump_of_a_clipping_client_costs_one_prompt() -> None:
    at, other = CODE.find("def ", 6000), CODE.find("def ", 12_000)
    cursors = [*range(at, at + 20), *range(other, other + 20), *range(at + 20, at + 40)]
    assert num_laid_out_anew(requests_of(cursors)) <= 3, "once when it is noticed, and at each jump"


def test_the_end_of_a_suffix_that_is_clipped_moves_in_big_steps() -> None:
    builder = builder_of("embedded", max_prompt_tokens=1024)
    ends = set()
    for key in range(200):
        request = request_at(CODE[2000 : 4000 + key] + CURSOR + CODE[6000 : 7000 - key])
        builder.build(request)
        suffix = layout_of(builder, request).suffix.text
        assert request.suffix.startswith(suffix)
        ends.add(len(suffix))
    assert len(ends) <= 4
