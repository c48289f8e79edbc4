"""The cursor of a completion, and how the completion is shown at it."""

import io

import pytest
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import Completion
from completion_server.client.cursor import (
    Cursor,
    Position,
    PositionError,
    parse_position,
    read_text,
    split_text,
)
from completion_server.client.output import CompletionView, footer

TEXT = "def add(a, b):\n    return \n"


@pytest.mark.parametrize(
    ("written", "position"),
    [
        ("app.py:12", Position("app.py", 12)),
        ("app.py:12:3", Position("app.py", 12, 3)),
        ("app.py", Position("app.py")),
        ("-", Position("-")),
        ("-:2:4", Position("-", 2, 4)),
        ("odd:name.py:7", Position("odd:name.py", 7)),
        ("C:\\src\\a.py:1", Position("C:\\src\\a.py", 1)),
    ],
)
def test_a_position_is_read_from_the_right(written: str, position: Position) -> None:
    assert parse_position(written) == position


@pytest.mark.parametrize("written", ["", "app.py:0", "app.py:3:0"])
def test_impossible_positions_are_refused(written: str) -> None:
    with pytest.raises(PositionError):
        parse_position(written)


@pytest.mark.parametrize(
    ("position", "left", "right"),
    [
        (Position("f", 2), "    return ", ""),
        (Position("f", 2, 5), "    ", "return "),
        (Position("f", 1, 1), "", "def add(a, b):"),
        (Position("f", 3), "", ""),
        (Position("f"), "", ""),
    ],
)
def test_the_cursor_splits_its_line(position: Position, left: str, right: str) -> None:
    cursor = split_text(TEXT, position)
    assert (cursor.left, cursor.right) == (left, right)
    assert cursor.prefix + cursor.suffix == TEXT


def test_the_end_of_a_line_is_before_its_carriage_return() -> None:
    assert split_text("a\r\nb\r\n", Position("f", 1)) == Cursor("a", "\r\nb\r\n", 1, 2)


def test_columns_count_characters_not_bytes() -> None:
    assert split_text("größe = 1", Position("f", 1, 6)).prefix == "größe"


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (Position("a.py", 9), "a.py has 3 lines; line 9 is beyond its end"),
        (Position("-", 9), "standard input has 3 lines; line 9 is beyond its end"),
        (Position("a.py", 2, 40), "line 2 of a.py has 11 characters; its columns go from 1 to 12, got 40"),
    ],
)
def test_a_position_beyond_the_text_is_refused_with_the_text_s_size(position: Position, message: str) -> None:
    with pytest.raises(PositionError) as caught:
        split_text(TEXT, position)
    assert str(caught.value) == message


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(PositionError, match="not UTF-8 text: byte 0xff at offset 2"):
        read_text("-", b"ab\xff")


def test_a_byte_order_mark_is_not_part_of_the_text() -> None:
    assert read_text("-", b"\xef\xbb\xbfx = 1") == "x = 1"


CURSOR = split_text("x = [1, ]\n", Position("f", 1, 9))


def show(*, is_terminal: bool, is_silent: bool = False, pieces: tuple[str, ...] = ("2, ", "3")) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, color_system="standard", highlight=False)
    view = CompletionView(console, CURSOR, is_silent=is_silent)
    view.begin()
    for piece in pieces:
        view.add(piece)
    view.finish()
    return output.getvalue()


def test_a_terminal_shows_the_line_dimmed_and_the_completion_highlighted() -> None:
    assert show(is_terminal=True) == ("\x1b[2mx = [1, \x1b[0m\x1b[1;32m2, \x1b[0m\x1b[1;32m3\x1b[0m\x1b[2m]\x1b[0m\n")


def test_a_pipe_gets_the_completion_alone() -> None:
    assert show(is_terminal=False) == "2, 3"


def test_a_silent_view_shows_nothing() -> None:
    assert show(is_terminal=True, is_silent=True) == ""


def test_a_completion_can_not_drive_the_terminal() -> None:
    shown = show(is_terminal=True, pieces=("a\x1b]0;title\x07b\r",))
    assert "a\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}" in shown


def test_the_footer_omits_unknown_values() -> None:
    answer = Completion("", pb.End(finish_reason=pb.FINISH_REASON_STOP), None, (), 5.0)
    text = footer(answer).plain
    assert text.startswith("no text · 5.0 ms in all · stop")
    assert "tokens/s" not in text
    assert text.endswith("No completion: the model has nothing to add here.")
