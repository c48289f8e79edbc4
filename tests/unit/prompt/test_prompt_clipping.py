"""Clients that clip the text before the cursor are noticed, and what that is worth."""

from itertools import pairwise

import pytest

from completion_server.prompt.clipping import SentText, first_sent, num_clipped
from tests.unit.prompt.prompts import CODE, CURSOR, builder_of, layout_of, request_at

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


def test_a_jump_of_such_a_client_is_noticed_by_its_length() -> None:
    assert after(CODE[:WINDOW], CODE[6000 : 6000 + WINDOW]).is_clipped
    assert not after(CODE[:200], CODE[6000:6200]).is_clipped, "a short text may be another one of this length"


def test_a_client_that_counts_lines_is_noticed() -> None:
    lines = CODE.splitlines(keepends=True)
    texts = ["".join(lines[at : at + 40]) for at in range(3)]
    assert after(*texts).clip_size == min(len(text) for text in texts[1:])
    assert after("".join(lines[:40]), "".join(lines[25:65])).is_clipped


def test_a_line_longer_than_what_is_remembered_hides_nothing() -> None:
    text = "value = [" + "1, " * 200 + "]\n" + CODE
    assert after(text[:WINDOW], text[7 : 7 + WINDOW - 5]).is_clipped


def test_an_edit_near_the_start_hides_nothing() -> None:
    earlier = CODE[:WINDOW]
    later = CODE[90:120] + "# edited\n" + CODE[120 : WINDOW + 40]
    assert num_clipped(later, earlier) == 0 or after(earlier, later).is_clipped
    assert after(earlier, later).is_clipped


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


def test_text_that_moves_up_was_clipped_above() -> None:
    sent = first_sent(CODE[:WINDOW])
    assert sent.next(CODE[300:1700], "", has_moved_up=True).is_clipped
    assert not sent.next(CODE[: WINDOW - 10], "", has_moved_up=True).is_clipped, "its start is still there"


def test_a_shorter_text_of_a_clipping_client_is_whole() -> None:
    sent = after(CODE[:WINDOW], CODE[9 : WINDOW + 9])
    assert not sent.next(CODE[: WINDOW - 1], "", has_moved_up=False).is_clipped
    assert sent.next(CODE[4000 : 4000 + WINDOW], "", has_moved_up=False).is_clipped


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


@pytest.mark.parametrize("num_keys", [1, 20, 150])
def test_the_start_moves_in_big_steps_however_many_keys_lie_between_requests(num_keys: int) -> None:
    cursors = list(range(4000, 7600, num_keys))
    moves = num_laid_out_anew(requests_of(cursors))
    assert moves <= 1 + 3600 / (WINDOW * 0.15)


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
