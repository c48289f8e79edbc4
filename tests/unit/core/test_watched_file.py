"""A file that is read again when it changes."""

import errno
from pathlib import Path

import pytest

from completion_server.core.watched_file import WatchedFile


async def test_a_change_that_could_not_be_read_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, reports = tmp_path / "keys", list[bool]()
    path.write_bytes(b"old")
    watched = WatchedFile("auth.keys_file", str(path), bytes.decode, lambda _key, failed: reports.append(failed), "")
    watched.load()

    def fail(_path: Path) -> bytes:
        raise OSError(errno.EMFILE, "no descriptors")

    path.write_bytes(b"newer")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        assert [await watched.poll() for _ in range(3)] == [False] * 3
        assert (watched.content, reports) == ("old", [True])
        assert [each.getMessage() for each in caplog.records] == [
            f"auth.keys_file: {path} can't be used (no descriptors); its last good content stays"
        ]
    assert await watched.poll()
    assert (watched.content, reports) == ("newer", [True, False])
    assert not await watched.poll(), "nothing has changed"
