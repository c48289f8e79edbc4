"""Files and folders that appear whole or not at all, locks and digests; a disk that refuses is a PipelineError."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from completion_server.core import files
from draft_model.core.errors import PipelineError

REFUSALS = {
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOSPC, errno.ENOTDIR, errno.ENOTEMPTY, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""Error numbers of a disk that can't be written to; others, such as a network's, have other causes."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content; PipelineError when the disk refuses."""
    with replacing_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write; on success it takes the place of `path`, on failure it is removed.

    Raises PipelineError when the disk refuses (full, read-only); `path` is then unchanged.
    """
    with _plain_refusals(path), files.replacing_file(path) as file:
        yield file


def check_replaceable(path: Path, mark: str) -> None:
    """Raise PipelineError unless `path` is missing, an empty folder, or a folder with a file named `mark`.

    An empty `mark` allows no folder that holds anything.
    """
    try:
        is_taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}") from error
    if is_taken and not (mark and (path / mark).is_file()):
        why = f"holds something else: it has no {mark}" if mark else "exists already"
        raise PipelineError(f"{path} {why}; choose another folder or remove it")


@contextlib.contextmanager
def replacing_folder(path: Path, mark: str) -> Iterator[Path]:
    """Yield a new folder to fill; on success it takes the place of `path`, on failure it is removed.

    Raises PipelineError as `check_replaceable` does, and when the disk refuses; `path` is then unchanged.
    """
    path = path.resolve()
    check_replaceable(path, mark)
    with _plain_refusals(path), contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(files.replacing_folder(path))
        except OSError as error:
            raise PipelineError(f"cannot write beside {path}: {error.strerror}; nothing was changed") from error
        yield folder


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`; the lock ends with this process at the latest.

    Raises PipelineError, which names `what`, if another process holds the lock or the disk refuses.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PipelineError(f"another process is writing {what}") from error
        except OSError as error:
            raise PipelineError(f"cannot write beside {what}: {error.strerror or error}") from error
        yield


@contextlib.contextmanager
def _plain_refusals(path: Path) -> Iterator[None]:
    """Turn the disk's refusal to write `path` into a PipelineError; other errors pass."""
    try:
        yield
    except Exception as error:
        reason = _refusal(error)
        if reason is None:
            raise
        raise PipelineError(f"cannot write {path}: {reason}; nothing was changed") from error


def _refusal(error: BaseException) -> str | None:
    """Return the disk's reason in an OSError, an error of safetensors or tokenizers, or the context of torch's."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in REFUSALS else None
    if type(error) in {Exception, SafetensorError}:
        number = re.search(r"\(os error (\d+)\)", str(error))
        return os.strerror(int(number[1])) if number and int(number[1]) in REFUSALS else None
    context = error.__context__ if type(error) is RuntimeError else None
    return _refusal(context) if context else None


def file_digest(path: Path) -> str:
    """Return a short digest of a file's content; PipelineError when it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}") from error


def weights_digest(folder: Path) -> str:
    """Return a short digest of a model folder's weights; PipelineError when it has none that can be read."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise PipelineError(f"{folder} is not a model folder: it has no *.safetensors")
    return hashlib.sha256("".join(map(file_digest, weights)).encode()).hexdigest()[:16]
