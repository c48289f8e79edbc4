"""Errors of the commands before they begin: one line that names the option, and no file is lost or left."""

from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.progress import Progress

from draft_model.__main__ import main
from draft_model.commands.common import counting, stepping
from draft_model.corpus.store import Corpus

TRAIN = ["train", "--preset", "embedded-draft", "--out", "run"]
DATA = ["data", "--tokens", "1e6"]


def refused(*arguments: str | Path) -> str:
    """What the command says when it refuses."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code in {1, 2}, result.output
    assert result.exc_info is not None
    assert result.exc_info[0] is SystemExit, "a line, no traceback"
    return result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*TRAIN, "--tokens", "-5"], "'-5' is less than 1"),
        ([*TRAIN, "--batch-tokens", "0"], "'0' is less than 1"),
        (["data", "--tokens", "inf"], "'inf' is not a number"),
        (["data", "--tokens", "nan"], "'nan' is not a number"),
        (["plan", "--gpus", "8", "--gpu", "a100", "--tokens", "50e9", "--teacher-parameters", "0"], "less than 1"),
        ([*TRAIN, "--mix", "0.5"], "--mix has no effect without --teacher"),
        ([*DATA, "--generated-share", "0.5"], "--generated-share has no effect without --generated"),
    ],
)
def test_options_without_sense_or_effect(arguments: list[str], said: str) -> None:
    assert said in " ".join(refused(*arguments).split())


def test_a_folder_of_something_else_is_never_replaced(repositories: Path, corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    source = repositories / "one"
    files = sorted(source.iterdir())
    collect = ("corpus", "--folder", source, "--folder", repositories / "three", "--hold-out", "three", "--out")
    assert "holds something else: it has no corpus.json" in refused(*collect, source)
    assert sorted(source.iterdir()) == files
    assert "holds something else" in refused(*collect, tmp_path)
    assert "exists already" in refused("tokenizer", "--corpus", corpus.folder, "--out", tmp_path)
    models = ("--target", "target_model/embedded", "--draft", "draft_model/embedded")
    assert "no report.json" in refused("evaluate", *models, "--out", tmp_path)
    assert "no config.json" in refused("build-embedded", "--work", tmp_path / "w", "--draft-out", tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_an_unknown_repository_to_hold_out_is_named(repositories: Path, tmp_path: Path) -> None:
    names = ("--hold-out", "Three", "--hold-out", "thre")
    said = refused("corpus", "--repositories", repositories, *names, "--out", tmp_path / "corpus")
    assert "nothing usable of it was read: thre\n" in said
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_every_tenth_update_is_a_line() -> None:
    with Progress(console=Console(file=StringIO(), force_terminal=False), transient=True) as progress:
        on_done = counting(progress, "shards")
        for done in (0, 1, 2, 3, 30, 31, 49, 50):
            on_done(done, 50)
        step = stepping(progress, "vLLM", 2)
        step()
        file = progress.console.file
        assert isinstance(file, StringIO)
        said = file.getvalue().splitlines()
    assert said == ["shards: 30 of 50", "shards: 49 of 50", "shards: 50 of 50", "vLLM: 1 of 2"]


def test_without_a_compiler_for_torch_compile_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", "--preset", "embedded-draft", "--out", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(tmp_path / "g++"))
        said = refused(*train)
        assert "no C++ compiler" in said
        assert "--no-compile" in said
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    assert "install python3-dev" in refused(*train)
    assert list(tmp_path.iterdir()) == []
