"""Parts that the whole package shares: errors that a user can fix, and files that appear whole or not at all."""

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from completion_server.core import files

QUIET_S = 2.5
"""Longest silence of long work."""


class TargetError(click.ClickException):
    """An expected failure with a message for the user; the command line prints it and ends with status 1."""


@contextlib.contextmanager
def telling(state: Callable[[], str]) -> Iterator[None]:
    """Say on standard error every `QUIET_S` seconds how far the work is; a terminal keeps the last line alone."""
    begun_s, ended, is_terminal = time.monotonic(), threading.Event(), sys.stderr.isatty()

    def tell() -> None:
        while not ended.wait(QUIET_S):
            line = f"{state()}, {time.monotonic() - begun_s:.0f} s"
            click.echo(f"\r{line}\x1b[K" if is_terminal else line, err=True, nl=not is_terminal)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


@contextlib.contextmanager
def _refusals(path: Path, outcome: str = "") -> Iterator[None]:
    """Turn the disk's refusal to write `path` into a TargetError."""
    try:
        yield
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror or error}{outcome}") from error


def check_writable(path: Path) -> None:
    """Raise TargetError when no file can be written at `path`, whose folder is made; nothing else is changed."""
    with _refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text; TargetError when the disk refuses."""
    with _refusals(path):
        files.write_atomically(path, text.encode())


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; on success it becomes `path`, on failure it is removed.

    Raises TargetError when `path` exists already, or the disk refuses (full, read-only).
    """
    _refuse_existing(path)
    with _refusals(path, "; nothing was left there"), files.replacing_folder(path) as folder:
        yield folder
        _refuse_existing(path)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise TargetError(f"{path} exists already; choose another --out or remove it")
