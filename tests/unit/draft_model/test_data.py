"""Rows of samples, shards and the order of blocks, and completions stored in chunks."""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.text.prompt.templates import EMBEDDED
from draft_model.core import PipelineError
from draft_model.corpus.store import Corpus
from draft_model.data.fim import Split, load_splits, resumed_lines
from draft_model.data.samples import CorpusText, SampleMaker, window_chars
from draft_model.data.shards import DataSettings, build_data, load_data
from draft_model.data.tokenizer import TemplateEncoder
from draft_model.training.trainer import collate

positions = st.floats(0, 1, exclude_max=True)


@given(positions, st.integers(1, 500))
def test_a_window_is_whole_lines_of_one_document(source: str, position: float, num_chars: int) -> None:
    corpus = CorpusText([source, "other = 1\n" * 30])
    window = corpus.window(position, num_chars)
    assert window.endswith("\n")
    assert any(f"\n{window}" in f"\n{document}" for document in (source, "other = 1\n" * 30))


def test_a_row_is_full_and_marks_what_stands_behind_the_middle_marker(source: str, encoder: TemplateEncoder) -> None:
    maker = SampleMaker(CorpusText([source]), encoder)
    ends = 0
    for seed in range(30):
        ids, is_middle, slot = maker.row(seed * 100, 128, Random(seed))
        assert len(ids) == len(is_middle) == 128
        assert slot > seed * 100
        assert all(mark for token, mark in zip(ids, is_middle, strict=True) if token == encoder.end)
        ends += ids.count(encoder.end)
    assert ends > 20


def test_generated_text_has_its_share_of_a_rows_samples(source: str, encoder: TemplateEncoder) -> None:
    written = Split("before = 1\n" * 60, "re", "turn 7", "\n" + "after = 1\n" * 60)
    maker = SampleMaker(CorpusText([source]), encoder, generated=(written,), generated_share=0.5)
    behind = [*encoder.encode_prompt("", "re", "")[-1:], *encoder.encode("turn 7"), encoder.end]
    middle = encoder.encode_prompt("", "", "")[-1]
    num_splits = num_written = 0
    for seed in range(60):
        ids, _, _ = maker.row(seed * 100, 512, Random(seed))
        num_splits += ids.count(middle)
        num_written += sum(ids[at : at + len(behind)] == behind for at in range(len(ids)))
    assert num_splits > 60
    assert 0.45 < num_written / num_splits < 0.75, "seven in ten of the other half are split too"


def test_a_share_of_the_splits_shows_other_files_of_the_folder(source: str, encoder: TemplateEncoder) -> None:
    texts = [source, "\n".join(f"other = {number}" for number in range(30)) + "\n", "alone = 1\n" * 30]
    corpus = CorpusText(texts, ["pack/one.py", "pack/two.py", "elsewhere/three.py"])
    opened = encoder.encode_file([])
    shown = []
    for seed in range(60):
        maker = SampleMaker(corpus, encoder, fim_share=1.0, snippet_share=0.5)
        at_one, at_three = (maker.draw(position, 500, Random(seed)) for position in (0.1, 0.99))
        assert at_three.ids[:1] != opened, "its folder has no other"
        shown.append(at_one.ids[:1] == opened)
        if shown[-1]:
            marker = at_one.ids.index(encoder.encode_prompt("", "", "")[0])
            assert encoder.decode(at_one.ids[:marker]).startswith("other = ")
            assert len(at_one.ids) <= 500
    assert 15 < sum(shown) < 45
    maker = SampleMaker(CorpusText(texts), encoder, fim_share=1.0, snippet_share=1.0)
    assert maker.draw(0.1, 500, Random(1)).ids[:1] != opened, "no source says which texts are of one folder"


def test_long_rows_have_long_samples_and_those_of_the_embedded_models_stay(encoder: TemplateEncoder) -> None:
    assert [window_chars(tokens) for tokens in (64, 1024, 4096)] == [2800, 2800, 11_200]
    corpus = CorpusText(["value = compute(first, second)\n" * 1000])
    maker = SampleMaker(corpus, encoder, max_window_chars=window_chars(4096))
    lengths = [len(maker.draw(0.1, 4096, Random(seed)).ids) for seed in range(40)]
    assert max(lengths) > 2000


def test_shards_depend_neither_on_the_process_nor_on_an_interruption(
    data: Path, corpus: Corpus, tokenizer_folder: Path, data_settings: DataSettings, tmp_path: Path
) -> None:
    def build(num_workers: int) -> list[tuple[int, int]]:
        reported: list[tuple[int, int]] = []
        build_data(
            corpus, tokenizer_folder, EMBEDDED, tmp_path, data_settings, num_workers=num_workers,
            on_shard=lambda done, total: reported.append((done, total)),
        )  # fmt: skip
        return reported

    assert build(2) == [(0, 2), (1, 2), (2, 2)]
    made_at = (tmp_path / "shard-00000").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "shard-00001")
    with pytest.raises(PipelineError, match="lacks 1 of 2 shards"):
        load_data(tmp_path)
    assert build(1) == [(1, 2), (2, 2)]
    assert (tmp_path / "shard-00000").stat().st_mtime_ns == made_at
    ours, theirs = (
        [block[name].tolist() for block in load_data(folder) for name in ("ids", "is_middle")]
        for folder in (tmp_path, data)
    )
    assert ours == theirs


def test_data_of_other_settings_is_not_mixed_in_and_bad_input_writes_nothing(
    data: Path, corpus: Corpus, tokenizer_folder: Path, data_settings: DataSettings, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=r"made otherwise \(seed 5, not 6\)"):
        build_data(corpus, tokenizer_folder, EMBEDDED, data, replace(data_settings, seed=6))
    with pytest.raises(ValueError, match="divide the block"):
        replace(data_settings, row_tokens=(48,))
    generated, out = tmp_path / "generated.jsonl", tmp_path / "data"
    generated.write_text("no JSON\n")
    with pytest.raises(PipelineError, match="holds no splits"):
        build_data(corpus, tokenizer_folder, EMBEDDED, out, data_settings, generated=generated)
    assert not out.exists()
    with pytest.raises(PipelineError, match="no text"):
        CorpusText(["", "  \n"])


def test_data_takes_the_tokenizer_of_a_target_and_not_its_weights(
    corpus: Corpus, tokenizer_folder: Path, data_settings: DataSettings, tmp_path: Path
) -> None:
    target = shutil.copytree(tokenizer_folder, tmp_path / "target")
    (target / "model-00001-of-00002.safetensors").write_bytes(b"large")
    build_data(corpus, target, EMBEDDED, tmp_path / "data", data_settings)
    kept = {path.name for path in (tmp_path / "data" / "tokenizer").iterdir()}
    assert kept == {path.name for path in tokenizer_folder.iterdir()}


def test_blocks_have_rows_of_one_length_each_and_the_marks_of_their_completions(
    data: Path, encoder: TemplateEncoder
) -> None:
    blocks = [collate([block]) for block in load_data(data)]
    assert {tuple(block["ids"].shape) for block in blocks} == {(1, 64), (2, 32)}
    assert all(bool(block["is_middle"][block["ids"] == encoder.end].all()) for block in blocks)


def test_generated_text_is_read_back_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    with resumed_lines(path, "one") as (file, done):
        file.write(b'{"before": "", "typed": "", "completion": "x", "after": ""}\n')
        assert done == 0
        with pytest.raises(PipelineError, match="another process is writing"), resumed_lines(path, "one"):
            pass
    assert load_splits(path) == [Split("", "", "x", "")]
    (tmp_path / "empty").write_text("")
    (tmp_path / "other").write_text('{"a": 1}\n')
    for name, message in (("missing", "draft-model generate"), ("empty", "is empty"), ("other", "holds no splits")):
        with pytest.raises(PipelineError, match=message):
            load_splits(tmp_path / name)
