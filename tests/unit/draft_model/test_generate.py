"""Text from a target, with an engine that answers from a list."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from draft_model.data.layouts import LayoutEncoder
from draft_model.distil import generate
from draft_model.engine import SpeculationCounts


class Canned:
    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        self.answers = answers
        self.asked: list[list[int]] = []

    def complete(self, prompts: Sequence[list[int]], **_: object) -> Sequence[Sequence[int]]:
        self.asked += prompts
        return self.answers


def test_the_completions_are_the_targets_and_the_prompts_those_of_the_server(
    source: str, encoder: LayoutEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = generate.draw_cursors([source, "<|fim_middle|>\n" * 50], encoder, 6, seed=1)
    assert all("<|fim_middle|>" not in cursor.before + cursor.after for cursor in cursors)
    engine = Canned([encoder.encode("abc"), [], *[encoder.encode("x")] * (len(cursors) - 2)])

    @contextmanager
    def opened(_: Path) -> Iterator[Canned]:
        yield engine

    monkeypatch.setattr(generate, "open_engine", opened)
    splits = generate.generate_splits(Path("target"), encoder, cursors, generate.Generation(8, 0.2, 1))
    assert engine.asked == [encoder.encode_prompt(one.before, one.typed, one.after) for one in cursors]
    assert [split.completion for split in splits] == ["abc", *["x"] * (len(cursors) - 2)]
    assert splits[1].before == cursors[2].before


def test_counts_since_are_differences() -> None:
    assert SpeculationCounts(7, (5, 2)).since(SpeculationCounts(3, (1, 1))) == SpeculationCounts(4, (4, 1))
