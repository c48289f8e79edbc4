"""Positions in three encodings, checked against Python's own encoders, and line ends as editors count them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol.types import Position, PositionEncodingKind

from completion_lsp.documents import Edit, least_edit
from completion_lsp.positions import Lines, num_units, prefix_of_units

CODECS = {
    PositionEncodingKind.Utf8: ("utf-8", 1),
    PositionEncodingKind.Utf16: ("utf-16-le", 2),
    PositionEncodingKind.Utf32: ("utf-32-le", 4),
}
TEXTS = st.text(st.sampled_from("aé€😋\t\n\f\u2028"), max_size=20)
ENCODINGS = st.sampled_from(list(CODECS))


@given(TEXTS, ENCODINGS, st.data())
def test_positions_are_those_of_the_encoded_line(
    text: str, encoding: PositionEncodingKind, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, len(text)))
    line = text.rfind("\n", 0, offset) + 1
    codec, width = CODECS[encoding]
    position = Position(text.count("\n", 0, offset), len(text[line:offset].encode(codec)) // width)
    lines = Lines(text, encoding)
    assert lines.position_at(offset) == position
    assert lines.offset_at(position) == offset


def test_lines_end_as_editors_count_them() -> None:
    lines = Lines("a\r\nb\rc\nd\f\u2028e")
    assert [lines.offset_at(Position(line, 0)) for line in range(5)] == [0, 3, 5, 7, 11]
    assert lines.position_at(11) == Position(3, 4)


@pytest.mark.parametrize(
    ("text", "position", "offset"),
    [
        ("ab\r\nc", Position(0, 9), 2),
        ("ab", Position(0, 9), 2),
        ("ab\n", Position(1, 0), 3),
        ("ab\n", Position(7, 0), 3),
        ("", Position(0, 0), 0),
        ("😋b", Position(0, 1), 1),
    ],
)
def test_a_position_beyond_an_end_is_the_end(text: str, position: Position, offset: int) -> None:
    assert Lines(text).offset_at(position) == offset


def test_half_a_character_from_an_editor_is_counted() -> None:
    assert num_units("\ud83d") == 1
    assert prefix_of_units("😋ab", 3) == "😋a"


@given(TEXTS, TEXTS, st.data())
def test_the_least_edit_makes_the_same_text(text: str, new: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    edit = Edit(start, data.draw(st.integers(start, len(text))), new)
    least = least_edit(text, edit)
    assert text[: least.start] + least.text + text[least.end :] == text[:start] + new + text[edit.end :]
    if least.text and least.start < least.end:
        assert text[least.start] != least.text[0]
        assert text[least.end - 1] != least.text[-1]
