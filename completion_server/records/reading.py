"""Reads the lines of record files, packed ones (.gz) as well."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAX_LINE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, without its end."""

    path: Path
    number: int
    data: bytes
    fault: str = ""
    """Why it can't be read to its end; "" if it can."""

    @property
    def place(self) -> str:
        """The file and the line, as editors and terminals link it."""
        return f"{self.path}:{self.number}"


def lines_of(path: Path) -> Iterator[Line]:
    """Yield the lines of a file, the last one also without an end. Reading ends after one that is too long or damaged.

    Raises:
        OSError: the file can't be opened.

    """
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while True:
            number += 1
            try:
                data = file.readline(_MAX_LINE_BYTES)
            except (OSError, EOFError, zlib.error) as error:
                yield Line(path, number, b"", f"can't be read: {error}")
                return
            if not data:
                return
            if data.endswith(b"\n"):
                yield Line(path, number, data[:-1])
            elif len(data) >= _MAX_LINE_BYTES:
                yield Line(path, number, data[:80], f"is longer than {_MAX_LINE_BYTES} bytes")
                return
            else:
                yield Line(path, number, data, "has no end")
