"""Splits for fill-in-the-middle and their samples."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.text.prompt.templates import ALL_LINES
from draft_model.data.fim import MAX_COMPLETION_CHARS, block_end, encode_split, narrow, ragged_pieces, split_at_random
from draft_model.data.tokenizer import TemplateEncoder

texts = st.text(alphabet="ab_ (:)\n\té€\U0001f40d", min_size=1, max_size=200).filter(lambda text: bool(text.strip()))
seeds = st.integers(0, 1 << 30)


@given(texts, seeds)
def test_a_split_is_the_text_in_whole_lines_around_the_cursors_line(text: str, seed: int) -> None:
    split = split_at_random(text, Random(seed))
    shown = split.before + split.typed + split.completion
    assert text.startswith(shown + split.after)
    assert split.before == "" or split.before.endswith("\n")
    assert "\n" not in split.typed
    assert split.after in {"", text[len(shown) :]} or split.after.endswith("\n")
    assert split_at_random(text, Random(seed)) == split


@given(texts, seeds, st.integers(0, 300))
def test_a_narrow_split_has_fewer_whole_lines_around_the_same_completion(text: str, seed: int, num_chars: int) -> None:
    split = split_at_random(text, Random(seed))
    less = narrow(split, num_chars)
    assert (less.typed, less.completion) == (split.typed, split.completion)
    assert split.before.endswith(less.before)
    assert split.after.startswith(less.after)
    assert f"\n{split.before}".endswith(f"\n{less.before}")
    assert less.after in {"", split.after} or less.after.endswith("\n")
    kept = len(less.before + less.typed + less.completion + less.after)
    assert kept <= max(num_chars, len(split.typed + split.completion))


def test_splits_fall_inside_words_start_lines_and_mostly_end_with_the_line(source: str) -> None:
    splits = [split_at_random(source, Random(seed)) for seed in range(400)]
    inside_words = sum(split.typed[-1:].isalnum() and split.completion[:1].isalnum() for split in splits)
    single_lines = [split for split in splits if "\n" not in split.completion]
    assert inside_words > 140
    assert len(single_lines) > 300
    assert sum(split.after.startswith("\n") for split in single_lines) > 100
    assert sum(split.typed == "" for split in splits) > 40
    assert sum("\n" in split.completion for split in splits) > 30
    assert sum(split.after == "" for split in splits) > 30
    assert sum(split.after[:1] in set(")]:") for split in splits if split.after) > 20


@pytest.mark.parametrize("lines_behind", [0, 1, 6, ALL_LINES])
def test_as_many_lines_stand_behind_the_marker_as_the_family_has(source: str, lines_behind: int) -> None:
    splits = [split_at_random(source, Random(seed), lines_behind=lines_behind) for seed in range(100)]
    assert all(source.startswith(split.before + split.typed + split.completion) for split in splits)
    if lines_behind == 0:
        assert {split.typed for split in splits} == {""}
    elif lines_behind == ALL_LINES:
        assert {split.before for split in splits} == {""}
    else:
        assert all(split.before == "" or split.before.endswith("\n") for split in splits)
        assert max(split.typed.count("\n") for split in splits) == lines_behind - 1


@given(seeds)
def test_a_sample_begins_with_the_prompt_that_the_server_builds(
    encoder: TemplateEncoder, source: str, seed: int
) -> None:
    split = split_at_random(source, Random(seed))
    ids, middle_from = encode_split(encoder, split)
    assert ids[:middle_from] == encoder.encode_prompt(split.before, split.typed, split.after)
    assert ids[middle_from:] == [*encoder.encode(split.completion), *([encoder.end] if split.is_whole else [])]


def test_a_completion_that_was_cut_off_has_no_end(encoder: TemplateEncoder) -> None:
    """Else a model would learn to end there."""
    text = "names = [" + '"a", ' * 300 + "]\n"
    splits = [split_at_random(text, Random(seed)) for seed in range(60)]
    cut = [split for split in splits if len(split.completion) == MAX_COMPLETION_CHARS]
    assert cut
    assert not any(split.is_whole for split in cut)
    assert all(split.is_whole for split in splits if len(split.completion) < MAX_COMPLETION_CHARS)
    assert [encoder.end in encode_split(encoder, split)[0] for split in splits] == [one.is_whole for one in splits]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("def f():", "def f():\n    a\n\n    b"),
        ("    a", "    a\n\n    b"),
        ("c", "c"),
    ],
)
@pytest.mark.parametrize("indent", ["    ", "\t"])
def test_a_block_ends_before_less_indentation(line: str, expected: str, indent: str) -> None:
    text = "def f():\n    a\n\n    b\n\nc\nd\n".replace("    ", indent)
    start = text.index(line.replace("    ", indent))
    assert text[start : block_end(text, start, 10)] == expected.replace("    ", indent)
    assert text[start : block_end(text, start, 2)].count("\n") <= 1
    with pytest.raises(ValueError, match="blank"):
        split_at_random(" \n\n  ", Random(1))


@given(st.text(max_size=300), seeds, st.integers(1, 50))
def test_ragged_pieces_are_the_text_again(text: str, seed: int, mean_chars: int) -> None:
    pieces = ragged_pieces(text, Random(seed), mean_chars)
    assert "".join(pieces) == text
    assert all(pieces)
