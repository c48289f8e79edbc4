"""A file of 8-byte words that several processes map. Each word has one writer, so no process ever waits for another.

A word is aligned, and so written and read as one, on x86-64 and on arm64. A reader may see some words of a group before
a write and others after it.
"""

import mmap
import os
from pathlib import Path
from typing import Any, Literal

_WORD = 8


class SharedWords:
    """One process's view of the file. It is unmapped with this object."""

    def __init__(self, path: Path, num_words: int, kind: Literal["Q", "q", "d"] = "Q") -> None:
        """Map a file that exists. Its words are whole numbers from 0 on, whole numbers, or floating-point numbers.

        Raises:
            OSError: the file can't be read.

        """
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), num_words * _WORD)
        self.words: memoryview[Any] = memoryview(memory).cast(kind)

    @classmethod
    def create(cls, path: Path, num_words: int, kind: Literal["Q", "q", "d"] = "Q") -> "SharedWords":
        """Create the file, with zeros and with its memory reserved, and map it.

        Raises:
            OSError: the file can't be written, or there is no space for it.

        """
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, num_words * _WORD)
        return cls(path, num_words, kind)
