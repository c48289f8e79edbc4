"""The cursor of a completion, and how the completion is shown at it."""

import io

import pytest
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import Completion
from completion_server.client.cursor import Position, PositionError, parse_position, read_text, split_text
from completion_server.client.output import CompletionView, footer

TEXT = "größe =\r\n    return \n"


@pytest.mark.parametrize(
    ("written", "left", "right"),
    [
        ("f:2", "    return ", ""),
        ("f:2:5", "    ", "return "),
        ("f:1:1", "", "größe ="),
        ("f:1:6", "größe", " ="),  # characters, not bytes
        ("f:1", "größe =", ""),  # before its carriage return
        ("f:3", "", ""),
        ("f", "", ""),
        ("-:2:5", "    ", "return "),
        ("odd:name.py:2", "    return ", ""),
        ("C:\\src\\a.py:1:1", "", "größe ="),
    ],
)
def test_the_cursor_splits_its_line(written: str, left: str, right: str) -> None:
    cursor = split_text(TEXT, parse_position(written))
    assert (cursor.left, cursor.right) == (left, right)
    assert cursor.prefix + cursor.suffix == TEXT


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "expected FILE:LINE or FILE:LINE:COL, got nothing"),
        ("app.py:0", "lines and columns count from 1"),
        ("app.py:3:0", "lines and columns count from 1"),
        ("a.py:9", "a.py has 3 lines; line 9 is beyond its end"),
        ("-:9", "standard input has 3 lines; line 9 is beyond its end"),
        ("a.py:2:40", "line 2 of a.py has 11 characters; its columns go from 1 to 12, got 40"),
    ],
)
def test_a_position_that_there_is_not_is_refused_with_the_text_s_size(written: str, message: str) -> None:
    with pytest.raises(PositionError, match=message):
        split_text(TEXT, parse_position(written))


def test_a_text_is_utf_8_without_its_byte_order_mark() -> None:
    assert read_text("-", b"\xef\xbb\xbfx = 1") == "x = 1"
    with pytest.raises(PositionError, match="not UTF-8 text: byte 0xff at offset 2"):
        read_text("-", b"ab\xff")


@pytest.mark.parametrize(
    ("is_terminal", "is_silent", "piece", "shown"),
    [
        (True, False, "2, 3", "\x1b[2mx = [1, \x1b[0m\x1b[1;32m2, 3\x1b[0m\x1b[2m]\x1b[0m\n"),
        (False, False, "2, 3", "2, 3"),
        (True, True, "2, 3", ""),
        (True, False, "a\x1b]0;t\x07\r", "\x1b[2mx = [1, \x1b[0m\x1b[1;32ma�]0;t��\x1b[0m\x1b[2m]\x1b[0m\n"),
    ],
    ids=["a terminal", "a pipe", "silent", "a text that would drive the terminal"],
)
def test_a_completion_is_shown_in_its_line(is_terminal: bool, is_silent: bool, piece: str, shown: str) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, color_system="standard", highlight=False)
    view = CompletionView(console, split_text("x = [1, ]\n", Position("f", 1, 9)), is_silent=is_silent)
    view.begin()
    view.add(piece)
    view.finish()
    assert output.getvalue() == shown


def test_the_footer_omits_unknown_values() -> None:
    text = footer(Completion("", pb.End(finish_reason=pb.FINISH_REASON_STOP), None, (), 5.0)).plain
    assert text.startswith("no text · 5.0 ms in all · stop")
    assert "tokens/s" not in text
    assert text.endswith("No completion: the model has nothing to add here.")
