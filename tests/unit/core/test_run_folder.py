"""The folder that the processes of a server share is the user's own, and never outlives the server for long."""

import multiprocessing
import shutil
import stat
import time
from multiprocessing.connection import Connection
from pathlib import Path

from completion_server.core.run_folder import RunFolder

SPAWN = multiprocessing.get_context("spawn")
WITHIN_S = 60.0


def leave_folder(pipe: Connection) -> None:
    """Be a server that is killed."""
    folder = RunFolder()
    (folder.path / "engine").mkdir()
    pipe.send(folder.path)
    time.sleep(WITHIN_S)


def test_the_folder_is_private_and_removed() -> None:
    with RunFolder() as folder:
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        (folder.path / "engine").mkdir()
    assert not folder.path.exists()
    folder.remove()


def test_the_folder_of_a_server_that_was_killed_is_removed_by_the_next_one() -> None:
    pipe, end = SPAWN.Pipe()
    process = SPAWN.Process(target=leave_folder, args=(end,))
    with RunFolder() as living:
        process.start()
        end.close()
        assert pipe.poll(WITHIN_S), "the other process made no folder"
        left: Path = pipe.recv()
        process.kill()
        process.join(WITHIN_S)
        with RunFolder():
            assert not left.exists()
            assert living.path.exists()


def test_what_is_not_a_servers_is_kept() -> None:
    """A folder without a lock may be one that another server is making."""
    with RunFolder() as folder:
        other = folder.path.with_name(f"{folder.path.name}-other")
        other.mkdir()
        try:
            with RunFolder():
                assert other.exists()
        finally:
            shutil.rmtree(other)
