"""Parts that all rooms of the package share: errors that a user can fix, and files that appear whole or not at all."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from completion_server.core import files


class TargetError(click.ClickException):
    """An expected failure with a message for the user; the command line prints it and ends with status 1."""


class QuantiseError(TargetError):
    """A model that can't be quantised, or a disk that refuses the copy."""


class EvaluationError(TargetError):
    """Tasks, models or texts that can't be measured."""


def check_writable(path: Path) -> None:
    """Raise EvaluationError when no file can be written at `path`, whose folder is made; nothing else is changed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror or error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text; EvaluationError when the disk refuses."""
    try:
        files.write_atomically(path, text.encode())
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; on success it becomes `path`, on failure it is removed.

    Raises QuantiseError when `path` exists already, or the disk refuses (full, read-only).
    """
    _refuse_existing(path)
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(files.replacing_folder(path))
        except OSError as error:
            raise QuantiseError(f"cannot write beside {path}: {error.strerror or error}") from error
        try:
            yield folder
            _refuse_existing(path)
            stack.close()
        except OSError as error:
            raise QuantiseError(f"cannot write {path}: {error.strerror or error}; nothing was left there") from error


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise QuantiseError(f"{path} exists already; choose another --out or remove it")
