"""Writes files and folders that appear whole or not at all: each is filled beside its final place, then renamed.

Callers turn the OSError of a disk that refuses (full, read-only) into an error of their own.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

ABANDONED_AFTER_S = 60.0
"""Age from which on an unfinished folder without a lock is taken for one that a killed process left."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content."""
    with replacing_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write; on success it takes the place of `path`, on failure it is removed.

    Raises:
        OSError: the disk refuses; `path` is then unchanged.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_unfinished(path: Path) -> None:
    """Remove what killed processes left beside `path` in `replacing_file`; no other process may be writing it."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill; on success it takes the place of `path`, on failure it is removed.

    The new folder stands beside `path`. Whatever is at `path` is replaced: callers check that it may be. Unfinished
    folders that killed processes left there are removed.

    Raises:
        OSError: the disk refuses; `path` is then unchanged.

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
    """Return the start of the names of this machine's unfinished folders; locks may not reach other machines."""
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
    """Remove the folders that killed processes left beside `path`; folders that are still being filled stay."""
    for folder in path.parent.glob(f"{glob.escape(_prefix(path))}*.tmp"):
        with contextlib.suppress(OSError):
            is_new = time.time() - folder.stat().st_mtime < ABANDONED_AFTER_S  # Its process may not have locked it yet.
            descriptor = None if is_new else _lock(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _flush(folder: Path) -> None:
    """Flush a folder to the disk: after a power cut its new name must not stand for empty files."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _recover(path: Path) -> None:
    """Put back what a killed process had moved aside in `_swap`; remove it where `path` exists."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(path)


def _swap(new: Path, path: Path) -> None:
    """Put `new` in the place of `path`; the old folder is moved aside first and comes back if that fails."""
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
