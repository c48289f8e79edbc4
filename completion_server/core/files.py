"""Writes files and folders atomically: each is filled under a temporary name in the same folder, then renamed.

Callers translate an OSError (disk full, read-only) into an error of their own.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

ABANDONED_AFTER_S = 60.0
"""Age after which an unfinished folder without a lock counts as left behind by a killed process."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content."""
    with replacing_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing_file(path: Path, *, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a file to write. On success it replaces `path`, on failure it is removed.

    `mode` are its permissions; None leaves them to the process's umask.

    Raises:
        OSError: the file can't be written; `path` is then unchanged.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_unfinished(path: Path) -> None:
    """Remove temporary files of `path` that killed processes left behind. No other process may be writing `path`."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill. On success it replaces `path`, on failure it is removed.

    The new folder has the same parent as `path`. Any file or folder at `path` is replaced; callers check that this is
    allowed. Unfinished folders that killed processes left behind are removed.

    Raises:
        OSError: the folder can't be written; `path` is then unchanged.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _recover(path)
    _remove_abandoned(path)
    new = Path(tempfile.mkdtemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent))
    lock = _lock(new)
    try:
        new.chmod(0o755)
        yield new
        _flush(new)
        _swap(new, path)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _prefix(path: Path) -> str:
    """Return the prefix of the names of this machine's unfinished folders; a lock may not reach other machines."""
    return f".{path.name}.{socket.gethostname()}."


def _lock(folder: Path) -> int | None:
    """Lock the folder for the life of this process; return the open descriptor, None if it can't be locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(path: Path) -> None:
    """Remove unfinished folders of `path` that killed processes left behind; folders still being filled stay."""
    for folder in path.parent.glob(f"{glob.escape(_prefix(path))}*.tmp"):
        with contextlib.suppress(OSError):
            is_new = time.time() - folder.stat().st_mtime < ABANDONED_AFTER_S  # its process may not have locked it yet
            descriptor = None if is_new else _lock(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _flush(folder: Path) -> None:
    """Flush a folder to the disk, so that after a power cut the renamed folder has no empty files."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _recover(path: Path) -> None:
    """Restore the old folder that a killed process moved aside in `_swap`; remove it if `path` exists."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(path)


def _swap(new: Path, path: Path) -> None:
    """Replace `path` with `new`. The old folder is moved aside first, and restored if the rename fails."""
    if not path.exists():
        new.rename(path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the project's folder in the user's cache folder; None if the user has none."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if not Path(cache).is_absolute():  # unset, or a path that the XDG specification says to ignore
        if not (home := environ.get("HOME")):
            return None
        cache = f"{home}/.cache"
    return Path(cache) / "completion-server"
