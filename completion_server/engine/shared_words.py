"""A file of 8-byte words that several processes map. Each word has one writer, so no process ever waits for another.

A word is written and read as one. A reader may see some words of a group before a write and others after it.
"""

import mmap
from pathlib import Path

_WORD = 8


class SharedWords:
    """One process's view of the file. It is unmapped with this object."""

    def __init__(self, path: Path, num_words: int) -> None:
        """Map a file that exists."""
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), num_words * _WORD)
        self.words = memoryview(memory).cast("Q")
        """Whole numbers from 0 on."""

    @classmethod
    def create(cls, path: Path, num_words: int) -> "SharedWords":
        """Create the file, with zeros, and map it."""
        with path.open("xb") as file:
            file.truncate(num_words * _WORD)
        return cls(path, num_words)
