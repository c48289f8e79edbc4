import pytest

from completion_server.client.cursor import (
    Cursor,
    Position,
    PositionError,
    language_of,
    parse_position,
    read_text,
    split_text,
)

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


@pytest.mark.parametrize(("name", "language"), [("a.PY", "python"), ("b.tsx", "typescriptreact"), ("x", "plaintext")])
def test_the_language_comes_from_the_extension(name: str, language: str) -> None:
    assert language_of(name) == language
