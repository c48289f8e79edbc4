"""The sources of the embedded models, and corpora on disk."""

import re
from pathlib import Path

import pytest

from draft_model.core import PipelineError
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.readers import (
    STDLIB,
    read_installed,
    read_repositories,
    read_stdlib,
)
from draft_model.corpus.sources import FETCHED, HELD_OUT, INSTALLED, OTHER_NAMES, fetch_wheels, read_embedded_sources
from draft_model.corpus.store import Corpus, Document, Side
from tests.unit.draft_model.tiny import different_source

LOCKED = Path(__file__).parents[4] / "requirements"


def document(path: str = "pkg/mod.py", text: str = "", licence: str = "MIT") -> Document:
    return Document("pkg", path, licence, text or different_source(1))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_standard_library_and_installed_packages_are_sources() -> None:
    assert next(read_stdlib()).repository == STDLIB
    assert next(read_installed("click")).licence == "BSD-3-Clause"
    assert not set(INSTALLED) & set(FETCHED)
    assert set(HELD_OUT) <= set(FETCHED)


def test_a_package_that_is_missing_is_an_error_unless_it_has_another_name() -> None:
    with pytest.raises(PipelineError, match="no-such-package-here is not installed"):
        list(read_installed("no-such-package-here"))
    with pytest.raises(PipelineError, match="no-such-package-here or nor-this is not installed"):
        list(read_installed("no-such-package-here", "nor-this"))
    assert next(read_installed("no-such-package-here", "click")).repository == "click"


def test_installed_packages_are_checked_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draft_model.corpus.sources.INSTALLED", ("click", "no-such-package-here"))
    monkeypatch.setattr("draft_model.corpus.sources.subprocess.run", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(PipelineError, match="no-such-package-here is not installed"):
        fetch_wheels(tmp_path)


def test_a_package_without_a_list_of_its_files_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listless-1.0.dist-info").mkdir()
    (tmp_path / "listless-1.0.dist-info" / "METADATA").write_text("Name: listless\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PipelineError, match="listless has no list of its files"):
        list(read_installed("listless"))


def test_a_chosen_part_applies_to_a_package_of_either_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draft_model.corpus.sources.read_stdlib", lambda: iter(()))
    monkeypatch.setattr("draft_model.corpus.sources.INSTALLED", ("not-here",))
    monkeypatch.setitem(OTHER_NAMES, "not-here", "click")
    monkeypatch.setattr("draft_model.corpus.sources.ONLY", {"not-here": ("click/co",)})
    paths = {item.path for item in read_embedded_sources(tmp_path)}
    assert "click/core.py" in paths
    assert "click/types.py" not in paths


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_packages_read_as_installed_are_locked_for_every_engine(engine: str) -> None:
    lists = "".join((LOCKED / f"{name}.txt").read_text() for name in (engine, "torch-cpu"))
    locked = {normal(name) for name in re.findall(r"^([\w.-]+)==", lists, re.MULTILINE)}
    missing = {name for name in INSTALLED if not {normal(name), OTHER_NAMES.get(name)} & locked}
    assert missing == set()


def test_no_repository_is_on_both_sides_and_all_texts_come_back(corpus: Corpus) -> None:
    sides = {side: {item.repository for item in corpus.documents(side)} for side in Side}
    assert sides == {Side.TRAIN: {"one", "two"}, Side.HELD_OUT: {"three"}}
    texts = corpus.texts(Side.TRAIN)
    assert sorted(texts) == sorted(different_source(number) for number in range(24) if number % 3 != 2)
    assert [text for part in corpus.parts(Side.TRAIN) for text in corpus.texts(Side.TRAIN, part)] == texts


def test_the_same_sources_give_the_same_corpus(corpus: Corpus, repositories: Path, tmp_path: Path) -> None:
    settings = CorpusSettings(held_out_percent=0.0, held_out=("three",), num_parts=2)
    assert collect_corpus(read_repositories(repositories, (".py",)), tmp_path / "again", settings) == corpus.manifest
    card = (tmp_path / "again" / "README.md").read_text()
    assert "| three | - | MIT | held-out | 8 |" in card


def test_an_empty_side_is_a_clear_error_and_leaves_nothing(repositories: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="train side of the corpus would be empty: 0 usable files"):
        collect_corpus([document(licence="GPL-3.0-only")], tmp_path / "out", CorpusSettings())
    settings = CorpusSettings(held_out_percent=0.0)
    with pytest.raises(PipelineError, match="--hold-out"):
        collect_corpus(read_repositories(repositories, (".py",)), tmp_path / "out", settings)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PipelineError, match="draft-model corpus"):
        Corpus(tmp_path)
