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


def fill_and_fail(path: Path, failure: Exception) -> None:
    with replacing_folder(path, MARK) as folder:
        (folder / "weights").write_text("new")
        raise failure


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "sub" / "file", b"old")
    write_atomically(tmp_path / "sub" / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "sub").iterdir()] == [("file", b"new")]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(PipelineError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def save_with_torch(path: Path) -> None:
    with path.open("wb") as file:
        torch.save(torch.zeros(LIMIT), file)


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: (folder / "card").write_bytes(bytes(LIMIT + 1)),
        lambda folder: save_file({"weights": torch.zeros(LIMIT)}, folder / "model.safetensors"),
        lambda folder: Tokenizer(WordLevel({str(word): word for word in range(LIMIT)})).save(str(folder / "t.json")),
        lambda folder: save_with_torch(folder / "checkpoint"),
    ],
    ids=["python", "safetensors", "tokenizers", "torch"],
)
def test_a_full_disk_leaves_the_old_folder_for_every_writer(write: Callable[[Path], object], tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "model", MARK) as folder:
        (folder / "weights").write_text("old")
    refused = pytest.raises(PipelineError, match="File too large; nothing was changed")
    with files_up_to(LIMIT), refused, replacing_folder(tmp_path / "model", MARK) as folder:
        write(folder)
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_a_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with replacing_folder(tmp_path / "model", mark="old") as folder:
            (folder / content).write_text(content)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]


@pytest.mark.parametrize(("mark", "why"), [(MARK, "something else: it has no weights"), ("", "exists already")])
def test_a_folder_of_another_kind_is_not_replaced(mark: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(PipelineError, match=why), replacing_folder(tmp_path, mark):
        pytest.fail("it is refused before anything is done")
    with pytest.raises(PipelineError, match=why), replacing_folder(tmp_path / "thesis.txt", mark):
        pytest.fail("nor is a file")
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_the_current_folder_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with replacing_folder(Path(), MARK) as folder:
        (folder / "weights").write_text("new")
    assert (tmp_path / "here" / "weights").read_text() == "new"


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), ValueError("other")])
def test_a_failure_leaves_the_old_folder(tmp_path: Path, failure: Exception) -> None:
    with replacing_folder(tmp_path / "model", MARK) as folder:
        (folder / "weights").write_text("old")
    with pytest.raises((PipelineError, ValueError)):
        fill_and_fail(tmp_path / "model", failure)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_a_failing_swap_brings_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replacing_folder(tmp_path / "model", MARK) as folder:
        (folder / "weights").write_text("old")
    rename = Path.rename

    def refuse_new(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            full_disk()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with (
        pytest.raises(PipelineError, match="nothing was changed"),
        replacing_folder(tmp_path / "model", MARK) as folder,
    ):
        (folder / "weights").write_text("new")
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_folders_of_killed_processes_are_removed_but_not_those_being_filled(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "model", MARK) as filled:
        left = filled.with_name(filled.name.replace(".tmp", "killed.tmp"))
    left.mkdir()
    (left / "weights").write_text("half")
    with replacing_folder(tmp_path / "model", MARK) as filled:
        assert left.exists(), "another process may just have made it"
        (filled / "weights").write_text("mine")
    os.utime(left, (0, 0))
    with replacing_folder(tmp_path / "model", MARK) as filled:
        assert not left.exists()
        os.utime(filled, (0, 0))
        with replacing_folder(tmp_path / "model", MARK) as another:
            (another / "weights").write_text("theirs")
        (filled / "weights").write_text("mine")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "mine"


def test_a_lock_is_one_processes_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    refused = pytest.raises(PipelineError, match="another process is writing it")
    with locked(path, "it"), refused, locked(path, "it"):
        pytest.fail("it is held")
    with locked(path, "it"):
        pass


def test_a_process_killed_while_it_swapped_lost_nothing(tmp_path: Path) -> None:
    aside = tmp_path / ".model.123.old"
    aside.mkdir()
    (aside / "weights").write_text("old")
    with pytest.raises(ValueError, match="other"):
        fill_and_fail(tmp_path / "model", ValueError("other"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_the_remains_of_a_process_killed_after_the_swap_are_removed(tmp_path: Path) -> None:
    for name in (".model.123.old", "model"):
        (tmp_path / name).mkdir()
    with replacing_folder(tmp_path / "model", MARK) as folder:
        (folder / "weights").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
