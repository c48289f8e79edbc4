"""The board in shared memory where the front ends of one engine tell each other of their books.

Each place has a row of 16 numbers, which only the front end at that place writes, and the parent once that one is dead.
A row is not read as a whole: one that is written meanwhile has some numbers of before and some of after, and on arm64
these may be any of them. That has the effect of a row read a moment earlier or later, and is over with the next
reading: a slot is counted once too often or too rarely, or one request starts before a more urgent one.
"""

import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

from completion_server.core.shared_words import SharedWords

_NUM_FIELDS = 16
_ROW = struct.Struct(f"@{_NUM_FIELDS}d")
"""In native order and alignment, in which a number is copied as a whole and not byte by byte."""
_EMPTY = array("d", [0.0] * _NUM_FIELDS)


class SlotBoard:
    """The rows of all places, as the front end at one of them uses them: it writes its own row and reads the others."""

    def __init__(self, path: Path, place: int, num_places: int, *, is_new: bool = False) -> None:
        """Map the board in a file; create it, with empty places, if it is new.

        Raises:
            OSError: the file can't be used.

        """
        self._numbers = (SharedWords.create if is_new else SharedWords)(path, num_places * _NUM_FIELDS, "d").words
        self._memory = self._numbers.cast("B")
        self._begin = place * _NUM_FIELDS
        others = [each for each in range(num_places) if each != place]
        self._others = [(each, each * _NUM_FIELDS, each * _ROW.size) for each in others]

    def others(self) -> Sequence[tuple[int, Sequence[float]]]:
        """Return the places of the other front ends, and their rows. A row begins with a number that is not 0."""
        memory, numbers, unpack = self._memory, self._numbers, _ROW.unpack_from
        return [(place, unpack(memory, offset)) for place, begin, offset in self._others if numbers[begin]]

    def write(self, row: Sequence[float], /) -> None:
        """Write the own row."""
        _ROW.pack_into(self._memory, self._begin * self._numbers.itemsize, *row)

    def put(self, field: int, value: float, /) -> None:
        """Write one number of the own row."""
        self._numbers[self._begin + field] = value

    def clear(self, place: int) -> None:
        """Empty the place of a dead front end: its slots are free, and nothing waits there."""
        self._numbers[place * _NUM_FIELDS : (place + 1) * _NUM_FIELDS] = memoryview(_EMPTY)
