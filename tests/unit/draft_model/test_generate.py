"""Text from a target, with an engine that answers from a list."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from draft_model.data.fim import Split
from draft_model.data.layouts import LayoutEncoder
from draft_model.distil import generate
from draft_model.engine import Completion, SpeculationCounts


class Canned:
    """The second answer is cut off."""

    def __init__(self, answers: Sequence[list[int]], context_tokens: int = 1024) -> None:
        self.answers = [Completion(ids, is_whole=number != 1) for number, ids in enumerate(answers)]
        self.context_tokens = context_tokens
        self.asked: list[list[int]] = []

    def complete(self, prompts: Sequence[list[int]], **_: object) -> Sequence[Completion]:
        self.asked += prompts
        return self.answers


def test_the_completions_are_the_targets_and_the_prompts_those_of_the_server(
    source: str, encoder: LayoutEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = generate.draw_cursors([source, "<|fim_middle|>\n" * 50], encoder, 6, seed=1)
    assert all("<|fim_middle|>" not in cursor.before + cursor.after for cursor in cursors)
    engine = Canned([encoder.encode("abc"), encoder.encode("y"), [], *[encoder.encode("x")] * (len(cursors) - 3)])

    @contextmanager
    def opened(_: Path) -> Iterator[Canned]:
        yield engine

    monkeypatch.setattr(generate, "open_engine", opened)
    splits = generate.generate_splits(Path("target"), encoder, cursors, generate.Generation(8, 0.2, 1))
    assert engine.asked == [encoder.encode_prompt(one.before, one.typed, one.after) for one in cursors]
    assert [split.completion for split in splits] == ["abc", "y", *["x"] * (len(cursors) - 3)]
    assert splits[2].before == cursors[3].before
    assert [split.is_whole for split in splits] == [True, False, *[True] * (len(cursors) - 3)]


def test_prompts_that_leave_no_room_for_a_completion_are_left_out(
    encoder: LayoutEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = Split("", "x = ", "one", ""), Split("y = 1\n" * 9, "x = ", "two", "")
    room = len(encoder.encode_prompt(short.before, short.typed, short.after)) + 8
    engine = Canned([encoder.encode("abc")], context_tokens=room)

    @contextmanager
    def opened(_: Path) -> Iterator[Canned]:
        yield engine

    monkeypatch.setattr(generate, "open_engine", opened)
    splits = generate.generate_splits(Path("target"), encoder, [long, short], generate.Generation(8, 0.0, 1))
    assert splits == [Split("", "x = ", "abc", "")]
    assert len(engine.asked) == 1


def test_counts_since_are_differences() -> None:
    assert SpeculationCounts(7, (5, 2)).since(SpeculationCounts(3, (1, 1))) == SpeculationCounts(4, (4, 1))
