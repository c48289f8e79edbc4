"""The board in shared memory where the front ends of one engine tell each other of their books.

Each place has a row of 16 numbers of 8 bytes, which only the front end at that place writes, and the parent once that
one is dead. There is no lock: a number is aligned, so it is read as it was written, on x86-64 and on arm64. A row is
not read as a whole: one that is written meanwhile has some numbers of before and some of after, and on arm64 these may
be any of them. That has the effect of a row read a moment earlier or later, and is over with the next reading: a slot
is counted once too often or too rarely, or one request starts before a more urgent one.
"""

import struct
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory

_NUM_FIELDS = 16
_ROW = struct.Struct(f"@{_NUM_FIELDS}d")
"""In native order and alignment, in which a number is copied as a whole and not byte by byte."""
_FIELD_SIZE = _ROW.size // _NUM_FIELDS
_ZEROS = (0.0,) * _NUM_FIELDS


class SlotBoard:
    """The rows of all places. The parent makes it; a child that multiprocessing starts gets it as an argument.

    Only such a child shares the parent's resource tracker: that of another process would remove the memory at its end.
    """

    def __init__(self, num_places: int, name: str | None = None) -> None:
        """Make a board of empty places, or attach to that with a name."""
        self.num_places = num_places
        self._shared = SharedMemory(name, create=name is None, size=_ROW.size * num_places)
        assert self._shared.buf is not None
        self._memory = self._shared.buf
        self._numbers = self._memory.cast("B").cast("d")

    def __reduce__(self) -> tuple[type["SlotBoard"], tuple[int, str]]:
        """Attach to the board in another process."""
        return SlotBoard, (self.num_places, self._shared.name)

    def at(self, place: int) -> "Place":
        """Return the board as the front end at a place sees it."""
        return Place(self._memory, self._numbers, place, self.num_places)

    def clear(self, place: int) -> None:
        """Empty the place of a dead front end: its slots are free, and nothing waits there."""
        _ROW.pack_into(self._memory, place * _ROW.size, *_ZEROS)

    def close(self) -> None:
        """Detach this process. The places that it has returned can't be used any more."""
        self._numbers.release()
        self._shared.close()

    def unlink(self) -> None:
        """Remove the board, once; the parent does this when all front ends have ended."""
        self._shared.unlink()


class Place:
    """The board as one front end sees it: it writes its own row and reads the others."""

    def __init__(self, memory: memoryview, numbers: "memoryview[float]", place: int, num_places: int) -> None:
        """Write to `place`; `numbers` is the same memory."""
        self._memory, self._numbers = memory, numbers
        self._begin = place * _NUM_FIELDS
        others = [each for each in range(num_places) if each != place]
        self._others = [(each, each * _NUM_FIELDS, each * _ROW.size) for each in others]

    def others(self) -> Sequence[tuple[int, Sequence[float]]]:
        """Return the places of the other front ends, and their rows. A row begins with a number that is not 0."""
        memory, numbers, unpack = self._memory, self._numbers, _ROW.unpack_from
        return [(place, unpack(memory, offset)) for place, begin, offset in self._others if numbers[begin]]

    def write(self, row: Sequence[float], /) -> None:
        """Write the own row."""
        _ROW.pack_into(self._memory, self._begin * _FIELD_SIZE, *row)

    def put(self, field: int, value: float, /) -> None:
        """Write one number of the own row."""
        self._numbers[self._begin + field] = value
