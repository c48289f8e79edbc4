"""Appends lines to a file, and rotates it by size.

A closed file keeps its place under another name: `usage.jsonl` becomes `usage.jsonl.000001`, the next one
`usage.jsonl.000002`. Numbers only rise, so a collector may pack or take away the closed files at any time: the last one
is in `.usage.jsonl.number`.
"""

import contextlib
import os
import re
from pathlib import Path

_DIGITS = 6
_MODE = 0o640


class RotatingFile:
    """One file and the closed ones beside it. Opened when there is something to write. For one thread."""

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        """Write to `path`, up to `max_bytes`, and keep `max_files` closed files, 0 for all."""
        self.path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._number_path = path.with_name(f".{path.name}.number")
        self._descriptor: int | None = None
        self._num_bytes = 0

    def append(self, lines: bytes) -> None:
        """Append whole lines, all or none of them.

        Raises:
            OSError: they can't be written, as on a full disk. The file is as before; if it can't be shortened, a cut
                line stays in it, and the next lines begin on a new one.

        """
        if self._num_bytes and self._num_bytes + len(lines) > self._max_bytes:
            self._rotate()
        if self._descriptor is None:
            self._open()
            if self._num_bytes and self._num_bytes + len(lines) > self._max_bytes:
                self._rotate()
                self._open()
        assert self._descriptor is not None
        try:
            _write_all(self._descriptor, lines)
        except OSError:
            with contextlib.suppress(OSError), contextlib.closing(self):  # opened again, it gets an end if it lacks one
                os.ftruncate(self._descriptor, self._num_bytes)
            raise
        self._num_bytes += len(lines)

    def close(self) -> None:
        """Flush the file to the disk and close it.

        Raises:
            OSError: it can't be flushed; it is closed nevertheless.

        """
        if self._descriptor is None:
            return
        descriptor, self._descriptor, self._num_bytes = self._descriptor, None, 0
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            num_bytes = os.fstat(descriptor).st_size
            if num_bytes and os.pread(descriptor, 1, num_bytes - 1) != b"\n":  # the last line is cut
                _write_all(descriptor, b"\n")
                num_bytes += 1
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._num_bytes = descriptor, num_bytes

    def _rotate(self) -> None:
        self.close()
        number = self._last_number() + 1
        with contextlib.suppress(OSError):  # a full disk; what is still here is counted all the same
            self._number_path.write_text(str(number))
        self.path.rename(self.path.with_name(f"{self.path.name}.{number:0{_DIGITS}}"))
        _flush_folder(self.path.parent)
        if self._max_files:
            for _number, path in closed_files(self.path)[: -self._max_files]:
                path.unlink(missing_ok=True)

    def _last_number(self) -> int:
        number = max((number for number, _path in closed_files(self.path)), default=0)
        with contextlib.suppress(OSError, ValueError):
            number = max(number, int(self._number_path.read_text()))
        return number


def closed_files(path: Path) -> list[tuple[int, Path]]:
    """Return the closed files of `path` with their numbers, the oldest first. They may be packed (.gz)."""
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)(\.gz)?")
    found = ((pattern.fullmatch(each.name), each) for each in path.parent.iterdir())
    return sorted((int(match[1]), each) for match, each in found if match)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
