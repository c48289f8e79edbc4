"""Files and folders that appear whole or not at all: filled beside their final place, then renamed."""

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

from target_model.core.errors import EvaluationError, QuantiseError

NEW_S = 60.0


def check_writable(path: Path) -> None:
    """EvaluationError when no file can be written at `path`, whose folder is made if need be; nothing is changed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror or error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text; EvaluationError when the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill that becomes `path` on success and vanishes on failure.

    Raises QuantiseError when `path` exists already, or the disk refuses (full, read-only).
    """
    if path.exists():
        raise QuantiseError(f"{path} exists already; choose another --out or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent))
    except OSError as error:
        raise QuantiseError(f"cannot write beside {path}: {error.strerror or error}") from error
    mine = _hold(temporary)
    try:
        temporary.chmod(0o755)
        yield temporary
        _flush(temporary)
        temporary.rename(path)
    except OSError as error:
        raise QuantiseError(f"cannot write {path}: {error.strerror or error}; nothing was left there") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if mine is not None:
            os.close(mine)


def _prefix(path: Path) -> str:
    """What the unfinished folders of this machine begin with: locks need not reach further, over NFS say."""
    return f".{path.name}.{socket.gethostname()}."


def _hold(folder: Path) -> int | None:
    """An open descriptor that says, as long as this process lives, that the folder is in use; None where it can't."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(path: Path) -> None:
    """Remove the folders that killed processes left beside `path`; those that are still being filled stay."""
    for folder in path.parent.glob(f"{glob.escape(_prefix(path))}*.tmp"):
        with contextlib.suppress(OSError):
            is_new = time.time() - folder.stat().st_mtime < NEW_S  # Perhaps not held yet.
            descriptor = None if is_new else _hold(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _flush(folder: Path) -> None:
    """Have the disk take all of a folder: after a power cut its new name must not stand for empty files."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
