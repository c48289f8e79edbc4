"""Text from a target, with an engine that answers by rule."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draft_model import distil as module
from draft_model.core import PipelineError
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.store import Corpus, Document
from draft_model.data.fim import Split, load_splits
from draft_model.data.tokenizer import TemplateEncoder
from draft_model.distil import GenerationSettings, draw_cursors, generate
from draft_model.models import GeneratedTokens
from tests.unit.draft_model.tiny import different_source

Answer = Callable[[int], GeneratedTokens]


class Answering:
    """Answers the n-th prompt of all, counted from 0."""

    def __init__(self, answer: Answer, context_tokens: int = 1024) -> None:
        self.answer = answer
        self.context_tokens = context_tokens
        self.asked: list[list[int]] = []
        self.seeds: list[int] = []
        self.options: Mapping[str, Any] | None = None

    def complete(self, prompts: Sequence[list[int]], *, seed: int, **_: object) -> Sequence[GeneratedTokens]:
        first = len(self.asked)
        self.asked += prompts
        self.seeds.append(seed)
        return [self.answer(first + number) for number in range(len(prompts))]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder with weights that nothing loads."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "target" / "tokenizer.json").write_bytes(b"tokens")
    return tmp_path / "target"


@pytest.fixture
def open_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answering], None]:
    def use(engine: Answering) -> None:
        @contextmanager
        def opened(_: Path, *, options: Mapping[str, Any] | None) -> Iterator[Answering]:
            engine.options = options
            yield engine

        monkeypatch.setattr(module, "open_engine", opened)

    return use


def test_the_completions_are_the_targets_and_the_prompts_those_of_the_server(
    encoder: TemplateEncoder, target: Path, tmp_path: Path, open_with: Callable[[Answering], None]
) -> None:
    corpus = tmp_path / "corpus"
    texts = [different_source(1), "MARKER = 1  # <|fim_middle|>\n" + different_source(2), different_source(3)]
    documents = (Document(f"r{number}", "a.py", "MIT", text) for number, text in enumerate(texts))
    collect_corpus(documents, corpus, CorpusSettings(held_out=["r2"], held_out_percent=0, num_parts=1))
    cursors = draw_cursors(Corpus(corpus), encoder, 6, seed=1)
    assert len(cursors) == 6
    assert all("<|fim_middle|>" not in cursor.before + cursor.after for cursor in cursors)
    answers = ["abc", "y", "", *["x"] * (len(cursors) - 3)]
    engine = Answering(
        lambda number: GeneratedTokens(encoder.encode(answers[number]), None if number == 1 else encoder.end)
    )
    open_with(engine)
    out = tmp_path / "g.jsonl"
    num_written = generate(target, encoder, cursors, GenerationSettings(8, 0.2, 1), out, options={"max_model_len": 99})
    splits = load_splits(out)
    assert num_written == len(splits) == len(cursors) - 1
    assert engine.asked == [encoder.encode_prompt(one.before, one.typed, one.after) for one in cursors]
    assert engine.options == {"max_model_len": 99, "max_num_seqs": 32}
    assert [split.completion for split in splits] == ["abc", "y", *["x"] * (len(cursors) - 3)]
    assert splits[2].before == cursors[3].before
    assert [split.is_whole for split in splits] == [True, False, *[True] * (len(cursors) - 3)]


def test_a_killed_generation_goes_on_behind_the_last_chunk(
    encoder: TemplateEncoder, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    open_with: Callable[[Answering], None],
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "CHUNK", 2)
    cursors = [Split("", f"x{number} = ", "one", "") for number in range(5)]
    generation, out = GenerationSettings(8, 0.2, 10), tmp_path / "g.jsonl"

    def killed_at_the_fourth(number: int) -> GeneratedTokens:
        if number == 3:
            raise KeyboardInterrupt
        return GeneratedTokens(encoder.encode("abc"), encoder.end)

    open_with(Answering(killed_at_the_fourth))
    with pytest.raises(KeyboardInterrupt):
        generate(target, encoder, cursors, generation, out)
    assert not out.exists()
    with (tmp_path / ".g.jsonl.partial").open("a") as partial:
        partial.write('{"before": "", "ty')  # A killed process broke off here.
    engine = Answering(lambda _: GeneratedTokens(encoder.encode("abc"), encoder.end))
    open_with(engine)
    done: list[tuple[int, int]] = []
    assert generate(target, encoder, cursors, generation, out, on_done=lambda *at: done.append(at)) == 5
    assert len(engine.asked) == 3, "the first chunk was kept"
    assert engine.seeds == [12, 14], "every cursor has the seed that it would have had"
    assert done == [(2, 5), (4, 5), (5, 5)]
    assert [split.typed for split in load_splits(out)] == [cursor.typed for cursor in cursors]
    assert generate(target, encoder, cursors, generation, out) == 5
    assert len(engine.asked) == 3, "finished chunks are not made again"
    other = Answering(lambda _: GeneratedTokens(encoder.encode("other"), encoder.end))
    open_with(other)
    generate(target, encoder, cursors, replace(generation, temperature=0.5), out)
    assert len(other.asked) == 5, "chunks of other settings are not continued"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".g.jsonl.lock", "g.jsonl", "target"]


def test_prompts_that_leave_no_room_for_a_completion_are_left_out(
    encoder: TemplateEncoder, target: Path, tmp_path: Path, open_with: Callable[[Answering], None]
) -> None:
    short, long = Split("", "x = ", "one", ""), Split("y = 1\n" * 9, "x = ", "two", "")
    room = len(encoder.encode_prompt(short.before, short.typed, short.after)) + 8
    engine = Answering(lambda _: GeneratedTokens(encoder.encode("abc"), encoder.end), context_tokens=room)
    open_with(engine)
    generate(target, encoder, [long, short], GenerationSettings(8, 0.0, 1), tmp_path / "g.jsonl")
    assert load_splits(tmp_path / "g.jsonl") == [Split("", "x = ", "abc", "")]
    assert len(engine.asked) == 1
    with pytest.raises(PipelineError, match="wrote nothing at 1 cursors: either it ends at once, or none leaves room"):
        generate(target, encoder, [long], GenerationSettings(8, 0.0, 1), tmp_path / "other.jsonl")
