import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_model.data import BatchSource, CorpusText
from draft_model.tokenizer import Encoder

positions = st.floats(0, 1, exclude_max=True)


@pytest.fixture
def batches(source: str, encoder: Encoder) -> BatchSource:
    return BatchSource(CorpusText([source, source.upper()]), encoder, 128, (64, 32), seed=5)


@given(positions, st.integers(1, 500))
def test_a_window_is_whole_lines_of_one_document(source: str, position: float, num_chars: int) -> None:
    corpus = CorpusText([source, "other = 1\n" * 30])
    window = corpus.window(position, num_chars)
    document = source if window in source else "other = 1\n" * 30
    start = document.index(window)
    assert window
    assert start == 0 or document[start - 1] == "\n"
    assert window.endswith("\n")


def test_a_corpus_without_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        CorpusText(["", "  \n"])


def test_batches_are_full_and_their_rows_go_through_the_lengths(batches: BatchSource) -> None:
    assert [tuple(batches.batch(step).ids.shape) for step in range(3)] == [(2, 64), (4, 32), (2, 64)]
    assert batches.batch(0).is_middle.shape == (2, 64)


def test_a_batch_depends_on_seed_and_step_alone(batches: BatchSource, source: str, encoder: Encoder) -> None:
    again = BatchSource(CorpusText([source, source.upper()]), encoder, 128, (64, 32), seed=5)
    other = BatchSource(CorpusText([source, source.upper()]), encoder, 128, (64, 32), seed=6)
    again.batch(0)
    assert torch.equal(batches.batch(7).ids, again.batch(7).ids)
    assert not torch.equal(batches.batch(7).ids, batches.batch(9).ids)
    assert not torch.equal(batches.batch(7).ids, other.batch(7).ids)


def test_what_is_marked_as_middle_stands_behind_the_marker_and_holds_the_end(
    batches: BatchSource, encoder: Encoder
) -> None:
    seen = 0
    for step in range(0, 40, 2):
        batch = batches.batch(step)
        ends = batch.ids == encoder.end
        seen += int(ends.sum())
        assert bool(batch.is_middle[ends].all())
        assert not bool(batch.is_middle[batch.ids == encoder.prefix].any())
    assert seen > 20
