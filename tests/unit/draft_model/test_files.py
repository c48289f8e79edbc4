"""Files, folders and locks: each appears whole or not at all, also on a full disk and beside killed processes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from draft_model.core import PipelineError, locked, replacing_folder, write_atomically
from tests.support.disk import files_up_to

LIMIT = 50_000
MARK = "weights"


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with old weights, the only one beside which a test may leave nothing."""
    for content in ("older", "old"):
        with replacing_folder(tmp_path / "model", MARK) as folder:
            (folder / content).touch()
            (folder / MARK).write_text(content)
    return tmp_path / "model"


def is_old(model: Path) -> bool:
    names = [path.name for path in model.parent.iterdir()], sorted(path.name for path in model.iterdir())
    return (model / MARK).read_text() == "old" and names == (["model"], ["old", MARK])


def test_a_file_is_replaced_and_a_full_disk_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "sub" / "file", b"older")
    write_atomically(tmp_path / "sub" / "file", b"old")
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(PipelineError, match="No space left"):
        write_atomically(tmp_path / "sub" / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "sub").iterdir()] == [("file", b"old")]


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: (folder / "card").write_bytes(bytes(LIMIT + 1)),
        lambda folder: save_file({"weights": torch.zeros(LIMIT)}, folder / "model.safetensors"),
        lambda folder: Tokenizer(WordLevel({str(word): word for word in range(LIMIT)})).save(str(folder / "t.json")),
    ],
    ids=["python", "safetensors", "tokenizers"],
)
def test_a_full_disk_leaves_the_old_folder_for_every_writer(write: Callable[[Path], object], model: Path) -> None:
    refused = pytest.raises(PipelineError, match=r"File too large.*; nothing was changed")
    with files_up_to(LIMIT), refused, replacing_folder(model, MARK) as folder:
        write(folder)
    assert is_old(model)


def test_a_failure_leaves_the_old_folder_also_one_that_a_killed_process_moved_aside(model: Path) -> None:
    model.rename(model.with_name(".model.123.old"))
    with pytest.raises(ValueError, match="null"), replacing_folder(model, MARK) as folder:
        (folder / MARK).write_text("new", encoding="other\0")
    assert is_old(model)


def test_a_failing_swap_brings_the_old_folder_back(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def refuse_new(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            full_disk()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(PipelineError, match="nothing was changed"), replacing_folder(model, MARK) as folder:
        (folder / MARK).write_text("new")
    assert is_old(model)


@pytest.mark.parametrize(("mark", "why"), [(MARK, "something else: it has no weights"), ("", "exists already")])
def test_a_folder_of_another_kind_is_not_replaced(mark: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(PipelineError, match=why), replacing_folder(tmp_path, mark):
        pytest.fail("it is refused before anything is done")
    with pytest.raises(PipelineError, match=why), replacing_folder(tmp_path / "thesis.txt", mark):
        pytest.fail("nor is a file")
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_what_killed_processes_left_is_removed_but_no_folder_that_is_being_filled(model: Path) -> None:
    model.with_name(".model.123.old").mkdir()  # left behind the swap
    with replacing_folder(model, MARK) as filled:
        left = filled.with_name(filled.name.replace(".tmp", "killed.tmp"))
        (filled / MARK).write_text("mine")
    left.mkdir()
    (left / MARK).write_text("half")
    with replacing_folder(model, MARK) as filled:
        assert left.exists(), "another process may just have made it"
        (filled / MARK).write_text("mine")
    os.utime(left, (0, 0))
    with replacing_folder(model, MARK) as filled:
        assert not left.exists()
        os.utime(filled, (0, 0))
        with replacing_folder(model, MARK) as another:
            (another / MARK).write_text("theirs")
        (filled / MARK).write_text("mine")
    assert [path.name for path in model.parent.iterdir()] == ["model"]
    assert (model / MARK).read_text() == "mine"


def test_a_lock_is_one_processes_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    refused = pytest.raises(PipelineError, match="another process is writing it")
    with locked(path, "it"), refused, locked(path, "it"):
        pytest.fail("it is held")
    with locked(path, "it"):
        pass
