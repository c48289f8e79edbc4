from pathlib import Path, PurePosixPath

import pytest

from draft_model.corpus import (
    HELD_OUT_PERCENT,
    Deduplicator,
    collect_corpus,
    is_held_out,
    is_wanted,
    load_corpus,
    save_corpus,
)
from draft_model.errors import PipelineError
from draft_model.sources import PACKAGES, STDLIB, Source

COPYLEFT = ("MPL", "GPL")


def test_the_split_is_by_name_and_about_the_share_that_is_meant() -> None:
    names = [f"package/module_{number}.py" for number in range(4000)]
    held_out = [name for name in names if is_held_out("x", name)]
    assert held_out == [name for name in names if is_held_out("x", name)]
    assert HELD_OUT_PERCENT / 2 < 100 * len(held_out) / len(names) < HELD_OUT_PERCENT * 2


@pytest.mark.parametrize(
    ("path", "is_kept"),
    [
        ("json/decoder.py", True),
        ("test/test_json.py", False),
        ("pkg/tests/helper.py", False),
        ("pkg/test_it.py", False),
        ("pkg/_vendor/rich/bar.py", False),
        ("encodings/cp1252.py", False),
        ("pkg/thing_pb2.py", False),
        ("pkg/data.pyi", False),
    ],
)
def test_only_ordinary_code_is_read(path: str, is_kept: bool) -> None:
    assert is_wanted(PurePosixPath(path), STDLIB) is is_kept


def test_parts_of_a_source_can_be_chosen() -> None:
    source = Source("torch", "BSD-3-Clause", only=("torch/nn/",), without=("torch/nn/parallel/",))
    kept = [
        is_wanted(PurePosixPath(path), source) for path in ("torch/nn/a.py", "torch/b.py", "torch/nn/parallel/c.py")
    ]
    assert kept == [True, False, False]


def test_no_source_is_copyleft_and_none_is_listed_twice() -> None:
    assert not [source for source in PACKAGES if any(word in source.licence for word in COPYLEFT)]
    assert len({source.name for source in PACKAGES}) == len(PACKAGES)


def test_a_copy_with_few_changes_is_refused() -> None:
    duplicates = Deduplicator()
    text = "".join(f"value_number_{number} = compute({number})\n" for number in range(20))
    assert duplicates.is_new(text)
    assert not duplicates.is_new(text.replace("value_number_3 ", "something_else "))
    assert duplicates.is_new(text.replace("value", "other"))


def test_a_corpus_comes_back_from_its_file(source_folder: Path, tmp_path: Path) -> None:
    corpus = collect_corpus(source_folder)
    save_corpus(corpus, tmp_path / "corpus.jsonl")
    assert load_corpus(tmp_path / "corpus.jsonl") == corpus
    assert len(corpus.texts(held_out=False)) == 20
    assert len(corpus.texts(held_out=True)) == 1


def test_nothing_to_learn_from_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="0 usable Python files"):
        collect_corpus(tmp_path)
    with pytest.raises(PipelineError, match="not a folder"):
        collect_corpus(tmp_path / "missing")
    with pytest.raises(PipelineError, match="draft-model corpus"):
        load_corpus(tmp_path / "corpus.jsonl")
