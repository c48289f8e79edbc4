"""Where a text is cut."""

import pytest

from completion_server.prompt.tokens.plaintext import make_plain
from completion_server.prompt.tokens.reuse import Encoded, Encoder
from completion_server.prompt.window import (
    HEAD_CHARACTERS,
    choose_start,
    cut_to_lines,
    find_window,
    first_lines,
    is_clipped,
    last_lines,
)
from tests.unit.prompt.prompts import CODE
from tests.unit.prompt.vocabularies import embedded, unknown


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


def test_typing_on_seldom_moves_the_start() -> None:
    """What two replicas that never saw the document choose, at each of 60 lines typed one after another."""
    starts = []
    for num_lines in range(220, 280):
        text = "".join(LINES[:num_lines])
        starts.append(choose_start(encoded(text), 1000, 0.2))
    assert starts == sorted(starts)
    assert len(set(starts)) <= 12


def test_the_start_does_not_depend_on_how_much_is_sent_above() -> None:
    text = "".join(LINES[:200])
    whole = choose_start(encoded(text), 400, 0.2)
    cut = text[len(text) // 3 :]
    assert len(text) - whole == len(cut) - choose_start(encoded(cut), 400, 0.2)


def test_without_a_line_in_reach_the_window_starts_at_the_next_one() -> None:
    text = "x = '" + "abcdefg " * 400 + "'\ny = 1\n"
    assert text[choose_start(encoded(text), 200, 0.2) :] == "y = 1\n"
    assert choose_start(encoded("x" * 3000), 100, 0.2) == 3000
    assert choose_start(encoded(text), 0, 0.2) == len(text)
    assert choose_start(encoded(text), -5, 0.2) == len(text)
    assert choose_start(encoded(""), 100, 0.2) == 0


def test_the_window_is_found_again() -> None:
    start = len("".join(LINES[:50]))
    text = "".join(LINES[:120])
    head = text[start : start + HEAD_CHARACTERS]
    assert find_window(text, start, head, 10_000) == start
    assert find_window("import sys\n" + text, start, head, 10_000) == start + 11
    assert find_window(text[700:], start, head, 10_000) == start - 700
    assert find_window(text.replace(head, "#" * 128), start, head, 10_000) is None
    assert find_window(text, start + 5, "x = 1\n", 10_000) is None
    assert find_window(text, start, head, 500) == start, "its old place is looked at however far up"
    assert find_window("import sys\n" + text, start, head, 500) is None, "the search is bounded"


def test_the_window_is_not_found_inside_a_line() -> None:
    head = "value = compute_something()\n" * 2
    assert find_window("x" * 30 + head, 5, head, 1000) is None
    assert find_window("other_" + head + head, 5, head, 1000) == 6 + 28


def test_a_window_from_the_top_stays_there_while_the_top_is_edited() -> None:
    text = "".join(LINES[:50])
    head = text[:HEAD_CHARACTERS]
    assert find_window("import sys\n" + text, 0, head, 10_000) == 0
    assert find_window("x", 0, "y", 10_000) == 0
    assert not is_clipped("import sys\n" + text, head)


def test_a_client_that_cuts_the_top_off_is_noticed() -> None:
    text = "".join(LINES[:50])
    head = text[:HEAD_CHARACTERS]
    assert is_clipped(text[5:] + "more", head)
    assert find_window(text[5:], 0, head, 10_000) is None
    assert not is_clipped(text, head)
    assert not is_clipped("anything", "short\nhead")


def test_whole_lines_from_both_ends() -> None:
    text = "one\ntwo\nthree\nfour"
    assert [last_lines(text, 14, reach) for reach in (99, 14, 13, 10, 6, 5)] == [0, 0, 4, 4, 8, 14]
    assert [first_lines(text, reach) for reach in (99, 14, 13, 4, 3)] == [
        text,
        "one\ntwo\nthree\n",
        "one\ntwo\n",
        "one\n",
        "one",
    ]
    assert first_lines("", 0) == ""


def test_a_text_is_cut_behind_a_line_or_inside_the_first() -> None:
    text = "".join(LINES[:40])
    shown = encoded(text)
    end = cut_to_lines(shown, 100)
    assert text[end - 1] == "\n"
    assert len(encoded(text[:end]).ids) <= 100
    following = text.find("\n", end) + 1
    assert len(encoded(text[:following]).ids) > 100
    assert cut_to_lines(shown, 10_000) == len(text)
    assert cut_to_lines(shown, 0) == 0
    one_line = encoded("value, " * 100)
    assert 0 < cut_to_lines(one_line, 50) < 700


def test_without_a_rule_the_cut_is_estimated() -> None:
    shown, _ = Encoder(make_plain(unknown())).encode("".join(LINES[:40]))
    assert not shown.starts
    end = cut_to_lines(shown, len(shown.ids) // 2)
    assert shown.text[end - 1] == "\n"
    assert 0.3 * len(shown.text) < end <= 0.5 * len(shown.text)
