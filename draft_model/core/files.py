"""Files and folders that appear whole or not at all: written beside their final place, then renamed."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from draft_model.core.errors import PipelineError

REFUSALS = {
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOSPC, errno.ENOTDIR, errno.ENOTEMPTY, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""What a disk says when it does not let one write; other errors, such as a network's, are not its."""
NEW_S = 60.0


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content; PipelineError when the disk refuses."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write that takes the place of `path` when all went well, and is removed when not.

    Raises PipelineError when the disk refuses (full, read-only); `path` is then what it was before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except Exception as error:
        _raise_refusal(path, error)
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_unfinished(path: Path) -> None:
    """Remove what killed processes left beside `path` in `replacing`; no other process may be writing it."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        temporary.unlink(missing_ok=True)


def check_replaceable(path: Path, mark: str) -> None:
    """PipelineError when `path` is of another kind than what comes in its place: not empty, without a file `mark`.

    Without a `mark` nothing that is there is replaced.
    """
    try:
        is_taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}") from error
    if is_taken and not (mark and (path / mark).is_file()):
        why = f"holds something else: it has no {mark}" if mark else "exists already"
        raise PipelineError(f"{path} {why}; choose another folder or remove it")


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`, at most as long as this process lives.

    Raises PipelineError, which says `what`, when another process holds it or the disk refuses.
    """
    with contextlib.ExitStack() as files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = files.enter_context(path.open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PipelineError(f"another process is writing {what}") from error
        except OSError as error:
            raise PipelineError(f"cannot write beside {what}: {error.strerror or error}") from error
        yield


@contextlib.contextmanager
def folder_atomically(path: Path, mark: str) -> Iterator[Path]:
    """Yield a new folder beside `path` to fill; on success it takes the place of `path`, on failure it is removed.

    Raises PipelineError as `check_replaceable` does, and when the disk refuses (full, read-only); `path` is then what
    it was before.
    """
    path = path.resolve()
    check_replaceable(path, mark)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _recover(path)
        _remove_abandoned(path)
        new = Path(tempfile.mkdtemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent))
    except OSError as error:
        raise PipelineError(f"cannot write beside {path}: {error.strerror}; nothing was changed") from error
    mine = _hold(new)
    try:
        new.chmod(0o755)
        yield new
        _flush(new)
        _swap(new, path)
    except Exception as error:
        _raise_refusal(path, error)
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
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


def _raise_refusal(path: Path, error: BaseException) -> None:
    """Raise PipelineError where `error` is the disk's refusal to write `path`; nothing where it is something else."""
    told = _told_by_disk(error)
    if told:
        raise PipelineError(f"cannot write {path}: {told}; nothing was changed") from error


def _told_by_disk(error: BaseException) -> str | None:
    """What the disk said: in an OSError, an error of safetensors or tokenizers, or below one of torch's writer."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in REFUSALS else None
    if type(error) in {Exception, SafetensorError}:
        number = re.search(r"\(os error (\d+)\)", str(error))
        return os.strerror(int(number[1])) if number and int(number[1]) in REFUSALS else None
    below = error.__context__ if type(error) is RuntimeError else None
    return _told_by_disk(below) if below else None


def _recover(path: Path) -> None:
    """Put back what a process that was killed in `_swap` had moved aside; remove it where `path` is there."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(path)


def _swap(new: Path, path: Path) -> None:
    """Put `new` where `path` is; the old folder is moved aside first and comes back if that fails."""
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


def file_digest(path: Path) -> str:
    """A short name for a file's content; PipelineError when it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}") from error


def weights_digest(folder: Path) -> str:
    """A short name for a model folder's weights; PipelineError when it has none that can be read."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise PipelineError(f"{folder} is not a model folder: it has no *.safetensors")
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()[:16]
