"""Files and folders that appear whole or not at all: filled beside their final place, then renamed."""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from target_model.errors import EvaluationError, QuantiseError


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
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        mine = _hold(temporary)
    except OSError as error:
        raise QuantiseError(f"cannot write beside {path}: {error.strerror or error}") from error
    try:
        temporary.chmod(0o755)
        yield temporary
        _flush(temporary)
        temporary.rename(path)
    except OSError as error:
        raise QuantiseError(f"cannot write {path}: {error.strerror or error}; nothing was left there") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(mine)


def _hold(folder: Path) -> int:
    """An open descriptor that says, as long as this process lives, that the folder is in use; OSError when it is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(path: Path) -> None:
    """Remove the folders that killed processes left beside `path`; those that are still being filled stay."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            descriptor = _hold(folder)
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
